#!/usr/bin/env bash
# Creates the TLS files for nodes on several hosts: a certificate authority for this system, and for each name a
# certificate and its key. When it is run again with further names, it uses the existing authority.
#   tools/make_certificates.sh FOLDER NAME...
# Copy to each host its own NAME.pem and NAME.key, and ca.pem; keep ca.key here. DAYS (3650) sets the validity.
set -euo pipefail
[[ $# -ge 2 ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$1
shift
umask 077
mkdir -p "$folder"
cd "$folder"
days=${DAYS:-3650}
new_key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
if [[ ! -e ca.key ]]; then
  new_key ca.key
  openssl req -x509 -new -key ca.key -days "$days" -subj "/CN=Troupe system $(hostname)" -out ca.pem \
    -addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign
fi
for name in "$@"; do
  new_key "$name.key"
  openssl req -new -key "$name.key" -subj "/CN=$name" |
    openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" -out "$name.pem" \
      -extfile <(echo "extendedKeyUsage=serverAuth,clientAuth") 2> /dev/null
done
