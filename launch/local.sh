#!/usr/bin/env bash
# Trains one policy on this machine, on whatever devices jax finds, and goes on where an earlier call was interrupted.
#
#   launch/local.sh CONFIG[:VARIANT] WORKDIR [--config.FIELD=VALUE ...]
#   launch/local.sh lookup_tiny:budgetmix runs/budgetmix --config.model.init_from=runs/base
#
# COMMAND=sft clones demonstrations instead. SIMULATED_DEVICES=8 splits the CPU into eight devices, to try a mesh:
#   SIMULATED_DEVICES=8 launch/local.sh lookup_tiny:budgetmix,runlocal /tmp/mesh --config.mesh.fsdp=2 --config.mesh.tensor=2
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
config=$1
workdir=$2
shift 2

jaxagent=jaxagent
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -x "$checkout/.venv/bin/jaxagent" ]; then
  jaxagent=$checkout/.venv/bin/jaxagent
fi

# Huge pages for malloc make training on the CPU about a tenth faster.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
if [ -n "${SIMULATED_DEVICES:-}" ]; then
  export JAX_PLATFORMS=cpu
  # With XLA's own order devices may come to two independent collectives in different orders, and wait for ever.
  export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=$SIMULATED_DEVICES"
  case $XLA_FLAGS in
    *xla_cpu_enable_concurrency_optimized_scheduler*) ;;
    *) XLA_FLAGS+=" --xla_cpu_enable_concurrency_optimized_scheduler=false" ;;
  esac
fi

# --resume starts afresh where the folder holds no checkpoint. exec: Ctrl-C and SIGTERM reach the run itself.
exec "$jaxagent" "${COMMAND:-train}" --config="$config" --workdir="$workdir" --resume "$@"
