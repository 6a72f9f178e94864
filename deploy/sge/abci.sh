#!/bin/bash
# ABCI: two nodes of type A with eight GPUs each, one worker for each GPU.
#
#   qsub -g GROUP abci.sh                      ./train.py --epochs 10
#   qsub -g GROUP abci.sh ./my-trainer --lr 0.1
#
# rt_F for the nodes with four GPUs. ABCI 3.0 has PBS Professional instead: see ../pbs.md.
#
#$ -N train
#$ -S /bin/bash
#$ -l rt_AF=2
#$ -l h_rt=24:00:00
#$ -cwd
#$ -j y
#$ -V

PATH=${SGE_O_PATH:-$PATH} # that of qsub: -V alone loses it where the queue starts a login shell
# Without a version these load the site's current default. `module avail cuda nccl` lists the versions; cuda/12.6 keeps a job the same.
# shellcheck disable=SC1091
source /etc/profile.d/modules.sh
module load cuda nccl || exit
set -u -o pipefail # after the modules, because few of them work with -u

[ $# -gt 0 ] || set -- ./train.py --epochs 10

exec rdzv-agent -- "$@"
