#!/usr/bin/env bash
# Makes the environment of the clients of other projects that are tried against the gateway, and prints its folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/sternpost/clients
stamp=$folder/requirements.txt

if ! cmp -s "$here/requirements.txt" "$stamp"; then
  echo "installing LiteLLM and LangChain as clients" >&2
  "${PYTHON:-python3.11}" -m venv "$folder"
  "$folder/bin/python" -m pip --disable-pip-version-check install -qq -r "$here/requirements.txt" >&2
  cp "$here/requirements.txt" "$stamp"
fi
echo "$folder"
