#!/usr/bin/env bash
# Random configurations of every family and of image processors against transformers, random adapters against PEFT, and a
# minute of speech that espeak-ng makes against transformers, in an environment under build/ with the packages that
# tests/differential/requirements.txt names. Arguments: those of tests/differential/differential.py.
# $MODELS_PYTHON: a Python that has the packages, in place of that environment.
# $TORCH_INDEX_URL: another index to install from, for example one whose torch has no CUDA.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1  # small models; the cores are left to others

python=${MODELS_PYTHON:-build/venv-models/bin/python}
if [[ -z ${MODELS_PYTHON:-} ]] && ! cmp -s tests/differential/requirements.txt build/venv-models/requirements.txt; then
  echo "Installing the packages of tests/differential/requirements.txt into build/venv-models"
  python3 -m venv build/venv-models
  build/venv-models/bin/pip install --quiet --disable-pip-version-check \
    ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} -r tests/differential/requirements.txt
  cp tests/differential/requirements.txt build/venv-models/requirements.txt
fi
status=0
nice "$python" tests/differential/differential.py "$@" || status=1
nice "$python" tests/differential/image_processors.py --count 2000 || status=1
if command -v espeak-ng > /dev/null; then
  nice "$python" -W ignore tests/differential/long_speech.py || status=1
else
  echo 'A minute of speech is left out: Debian'"'"'s package espeak-ng is not installed'
fi
exit "$status"
