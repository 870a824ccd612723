#!/usr/bin/env bash
# multi-node.conf as a Slurm job: Frontend and Scheduler on the first host of the allocation, the worker on the second.
# Troupe, the model and this folder are on a file system that all hosts share.
#   sbatch configs/slurm.sh path/to/model
#SBATCH --job-name=troupe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=1-00:00:00
set -euo pipefail
model=${1:?path to the model}
cd "${SLURM_SUBMIT_DIR:?run this with sbatch in the source folder}"
troupe=$PWD/build/release/troupe
work=$PWD/slurm-$SLURM_JOB_ID

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address() { getent ahostsv4 "$1" | awk '{ print $1; exit }'; }
first=$(address "${hosts[0]}")
second=$(address "${hosts[1]}")

# A certificate authority and certificates for this job only, readable by the user only.
tools/make_certificates.sh "$work" "${hosts[@]}"
# The example with this job's hosts. Clients on other hosts connect to the first one.
sed -e "s/10\.77\.0\.1/$first/" -e "s/10\.77\.0\.2/$second/" -e '/^tls-/d' -e 's/^host="127\.0\.0\.1"/host="0.0.0.0"/' \
  configs/multi-node.conf > "$work/troupe.conf"

options=(--config-file "$work/troupe.conf" --tls-ca "$work/ca.pem")
of() { echo --tls-certificate "$work/$1.pem" --tls-key "$work/$1.key"; }
"$troupe" topology "${options[@]}" $(of "${hosts[0]}")

# A node that ends is restarted; the supervisor and the requests wait for it.
srun --nodes=1 --ntasks=1 --nodelist="${hosts[1]}" --kill-on-bad-exit=0 \
  bash -c 'until "$@"; do sleep 1; done' node "$troupe" node worker-0 "$model" "${options[@]}" $(of "${hosts[1]}") &
srun --nodes=1 --ntasks=1 --nodelist="${hosts[0]}" "$troupe" serve "$model" "${options[@]}" $(of "${hosts[0]}")
