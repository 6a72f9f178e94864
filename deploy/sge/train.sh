#!/bin/bash
# Two nodes, one worker for each GPU; rdzv-agent starts the other node's agent by `qrsh -inherit`.
#
#   qsub train.sh                              ./train.py --epochs 10
#   qsub train.sh ./my-trainer --lr 0.1
#
# `mpi` is a parallel environment of the site's (`qconf -spl` lists them) with control_slaves TRUE, without which qrsh cannot start
# anything; how many slots make a node is up to it.
#
#$ -N train
#$ -S /bin/bash
#$ -pe mpi 2
#$ -l h_rt=24:00:00
#$ -cwd
#$ -j y
#$ -V

# module load cuda                             what the command needs; the other node gets this shell's environment
set -u -o pipefail #                           after that: what others have written seldom stands -u
[ $# -gt 0 ] || set -- ./train.py --epochs 10

exec rdzv-agent -- "$@"
