#!/bin/bash
# One Ray over all nodes of a Slurm job, and an anchorfl command on the first of them. Guide: docs/slurm.md
#
#   sbatch deploy/slurm.sh sweep r8-8/fedalign --trials 40 --cluster.client_gpus 0.1
#   sbatch --nodes=1 --gpus-per-node=1 deploy/slurm.sh run r8-8/fedalign --output runs/a
#   sbatch deploy/slurm.sh resume runs/a             # after the job's time was over, or a node was lost
#
# Submit in the checkout. In a container: ANCHORFL_IN="apptainer exec --nv anchorfl.sif" sbatch deploy/slurm.sh ...
#SBATCH --job-name=anchorfl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1   # one task a node: Ray shares its CPUs and GPUs out
#SBATCH --exclusive           # whole nodes: at its end, ray symmetric-run stops every Ray of yours on them
#SBATCH --gpus-per-node=1
#SBATCH --time=12:00:00       # at most what this costs: nodes x hours x your site's price of a node
#SBATCH --output=anchorfl-%j.log
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "slurm.sh: give it what you would give to anchorfl, such as: run digits/fedavg" >&2
    exit 2
fi
if [ -z "${ANCHORFL_IN:-}" ]; then
    PATH=$PWD/.venv/bin:$PATH # of make setup, where there is one
fi
case " $* " in # a resumed sweep joins the cluster that its folder names: auto; others than these take no such option
*" --resume "*) set -- anchorfl "$@" ;;
" cooccurrence "*) set -- anchorfl "$@" --address auto ;;
" run "* | " sweep "* | " table "* | " benchmark "* | " recommend "* | " probe "* | " data prepare "*)
    set -- anchorfl "$@" --cluster.address auto
    ;;
*) set -- anchorfl "$@" ;;
esac

export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=${RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT:-300} # imports from a slow disk
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HEAD

umask 077
# shellcheck disable=SC2086  # of several words
[ -s ~/.ray/auth_token ] || ${ANCHORFL_IN:-} ray get-auth-token --generate >/dev/null

# On every node: Ray's sockets, logs and spilled objects on its own disk. nproc counts the CPUs that Slurm gave the task,
# or OMP_NUM_THREADS, which many sites set.
# shellcheck disable=SC2016  # for the shell on the node
exec srun bash -c '
    export RAY_TMPDIR=${SLURM_TMPDIR:-/tmp}/anchorfl-$SLURM_JOB_ID
    mkdir -p "$RAY_TMPDIR"
    trap "rm -rf \"$RAY_TMPDIR\"" EXIT
    cpus=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
    $ANCHORFL_IN ray symmetric-run --address "$HEAD:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
        --num-cpus "$cpus" --disable-usage-stats -- "$@"
' bash "$@"
