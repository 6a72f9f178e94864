#!/bin/bash
# Writes a checkpoint before the time limit, and resumes from there in its next life, as often as needed.
#
#   qsub requeue.sh --data train.gz --layers 784,128,784 --epochs 50 --checkpoint-dir ckpt --checkpoint-every 500
#   qsub requeue.sh ./train.py --epochs 50
#
# At the soft limit (s_rt), ten minutes before the hard one, Grid Engine sends SIGUSR1 to all processes of the script. With -notify it
# sends SIGUSR2 before a qdel's SIGKILL. Both become SIGTERM for the agent. The workers write their checkpoint (rdzv-trainer with
# --checkpoint-dir) and end. The agent exits with 75, "requeue me". Grid Engine requeues a job that exits with 99.
#
#$ -N requeue
#$ -S /bin/bash
#$ -pe mpi 2
#$ -l s_rt=23:50:00,h_rt=24:00:00
#$ -notify
#$ -r y
#$ -cwd
#$ -j y
#$ -V

# module load cuda                             modules; the other node gets this shell's environment
set -u -o pipefail #                           after the modules, because few of them work with -u

# Without the inner trap both signals would end the agent, which is in this process group too.
(
  trap '' USR1 USR2
  exec rdzv-agent -- "$@"
) &
agent=$!
trap 'kill -TERM $agent' USR1 USR2 TERM

# A trapped signal ends `wait` early.
while kill -0 $agent 2>/dev/null; do wait $agent; done
wait $agent
code=$?
[ $code != 75 ] || exit 99
exit $code
