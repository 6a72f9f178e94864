#!/usr/bin/env bash
# Another Slurm for tests/cluster, in a folder: that of a later Debian, with its libraries. Nothing of it is installed here, and apt's own lists stay as they are.
#
#   RDZV_SLURM_ROOT=$(tests/cluster/slurm_root.sh trixie) pytest tests/cluster/test_slurm.py        trixie has 24.11, sid the newest
#
# slurm.py lays the folder's usr over each host's /usr. Only Slurm, MUNGE and libraries go into it, because programs with files elsewhere, such as perl, would
# not match the machine's own. The folder is made once, in the cache of tests/run. Delete it for a newer build of the same suite.
set -u -o pipefail

suite=${1:?usage: slurm_root.sh SUITE}
root=${XDG_CACHE_HOME:-$HOME/.cache}/rdzv-tests/slurm-$suite
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ ! -e "$root" ] || { echo "$root"; exit 0; }

fail() {
  echo "slurm_root.sh: $*" >&2
  exit 1
}
[ -e $keys ] || fail "$keys (package debian-archive-keyring) is needed for the Slurm of Debian $suite"
mkdir -p "${root%/*}"
new=$(mktemp -d "$root.XXXXXX") || fail "no folder can be made in ${root%/*}"
trap 'rm -rf "$new"' EXIT

# An apt of its own, which believes that nothing is installed and so brings all libraries.
mkdir -p "$new/apt/etc/preferences.d" "$new/apt/lists/partial" "$new/apt/archives/partial" "$new/root"
: >"$new/apt/status"
# shellcheck disable=SC2016 # apt's variables
mirror=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' 'Identifier: Packages' 2>/dev/null | sed -n 's/^Debian //p' | grep -v security | head -n 1)
echo "deb [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} $suite main" >"$new/apt/list"
get() {
  timeout -k 10 300 apt-get -q -o Dir::Etc="$new/apt/etc" -o Dir::Etc::sourcelist="$new/apt/list" -o Dir::Etc::sourceparts=- -o Dir::State="$new/apt" \
    -o Dir::State::status="$new/apt/status" -o Dir::Cache="$new/apt" -o APT::Sandbox::User=root -o Acquire::Languages=none "$@" >"$new/log" 2>&1 ||
    fail "apt-get $1 for Debian $suite failed or took longer than 300 s: $(grep -m 1 '^E:' "$new/log" || tail -n 1 "$new/log")"
}
get update
get install -y --no-install-recommends --download-only slurmctld slurmd slurm-client munge
for deb in "$new"/apt/archives/{lib,slurm,munge,zlib}*.deb; do
  dpkg -x "$deb" "$new/root" || fail "$deb cannot be unpacked"
done
# Their package's scripts would make these links in /etc/alternatives.
for name in slurmctld slurmd slurmstepd; do ln -s $name-wlm "$new/root/usr/sbin/$name"; done
chmod 755 "$new/root"
mv -T "$new/root" "$root" 2>/dev/null || [ -e "$root" ] || fail "$root cannot be made"
echo "$root"
