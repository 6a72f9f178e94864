#!/bin/bash
# Writes a checkpoint before the time limit, and resumes from there in its next life, as often as needed.
#
#   qsub requeue.sh --data train.gz --layers 784,128,784 --epochs 50 --checkpoint-dir ckpt --checkpoint-every 500
#   qsub requeue.sh ./train.py --epochs 50
#
# Ten minutes before the time limit the workers write their checkpoint (rdzv-trainer with --checkpoint-dir) and end. The agent exits with
# 75, "requeue me". Grid Engine requeues a job that exits with 99. Grid Engine does not report the time of the limit, so the script sets it.
# A soft limit (s_rt) does not do: Son of Grid Engine 8.1.9 kills a job of several hosts at its soft limit, and does not requeue it.
# With -notify, Grid Engine sends SIGUSR2 before a qdel's SIGKILL. It becomes SIGTERM for the agent: the workers write a checkpoint.
#
#$ -N requeue
#$ -S /bin/bash
#$ -pe mpi 2
#$ -l h_rt=24:00:00
#$ -notify
#$ -r y
#$ -cwd
#$ -j y
#$ -V

PATH=${SGE_O_PATH:-$PATH} #                that of qsub: -V alone loses it where the queue starts a login shell
# module load cuda                             modules; the other node gets this shell's environment
set -u -o pipefail #                           after the modules, because few of them work with -u

export RDZV_END_TIME=$(($(date +%s) + 24 * 3600)) # h_rt

# Without the inner trap both signals would end the agent, which is in this process group too.
(
  trap '' USR1 USR2
  exec rdzv-agent --leave-before-end 10m -- "$@"
) &
agent=$!
trap 'kill -TERM $agent' USR1 USR2 TERM

# A trapped signal ends `wait` early.
while kill -0 $agent 2>/dev/null; do wait $agent; done
wait $agent
code=$?
[ $code != 75 ] || exit 99
exit $code
