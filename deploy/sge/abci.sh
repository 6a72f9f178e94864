#!/bin/bash
# ABCI: two nodes of type A with eight GPUs each, one worker for each GPU.
#
#   qsub -g GROUP abci.sh                      ./train.py --epochs 10
#   qsub -g GROUP abci.sh ./my-trainer --lr 0.1
#
# rt_F for the nodes with four GPUs. ABCI 3.0 has PBS Professional instead: see ../pbs.md.
#
#$ -N train
#$ -l rt_AF=2
#$ -l h_rt=24:00:00
#$ -cwd
#$ -j y
set -u -o pipefail

# shellcheck disable=SC1091
source /etc/profile.d/modules.sh
module load cuda nccl
[ $# -gt 0 ] || set -- ./train.py --epochs 10

exec rdzv-agent -- "$@"
