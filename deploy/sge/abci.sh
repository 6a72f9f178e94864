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

# Without a version the site's default of the day is loaded: `module avail cuda nccl` lists them, and cuda/12.6 and the like keep a job
# what it was.
# shellcheck disable=SC1091
source /etc/profile.d/modules.sh
module load cuda nccl || exit
set -u -o pipefail # after that: what others have written seldom stands -u

[ $# -gt 0 ] || set -- ./train.py --epochs 10

exec rdzv-agent -- "$@"
