#!/bin/bash
# Two nodes, one worker for each GPU; rdzv-agent starts the other node's agent by `qrsh -inherit`.
#
#   qsub train.sh                              ./train.py --epochs 10
#   qsub train.sh ./my-trainer --lr 0.1
#
# `mpi` is a parallel environment of the site (`qconf -spl` lists them). It needs control_slaves TRUE, or qrsh cannot start an agent.
# It also decides how many slots a node has.
#
#$ -N train
#$ -S /bin/bash
#$ -pe mpi 2
#$ -l h_rt=24:00:00
#$ -cwd
#$ -j y
#$ -V

PATH=${SGE_O_PATH:-$PATH} #                that of qsub: -V alone loses it where the queue starts a login shell
# module load cuda                             modules; the other node gets this shell's environment
set -u -o pipefail #                           after the modules, because few of them work with -u
[ $# -gt 0 ] || set -- ./train.py --epochs 10

exec rdzv-agent -- "$@"
