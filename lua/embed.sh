#!/bin/sh
# embed.sh ROOT FILE... - writes C that holds each Lua file of ROOT as bytes (see
# src/bind/lua_modules.h). Make passes FILE with or without its source folder in front, so only
# the part from piper/ on counts.
set -eu
root=$1
shift
echo '/* Written by lua/embed.sh. */'
echo '#include "bind/lua_modules.h"'
rows=
for f in "$@"; do
  file=piper/${f##*lua/piper/}
  name=$(echo "${file%.lua}" | sed 's,/init$,,; s,/,.,g')
  id=m_$(echo "$name" | tr . _)
  echo "static const unsigned char $id[] = {"
  od -An -v -tu1 "$root/$file" | sed 's/[0-9][0-9]*/&,/g'
  echo '0 };'
  rows="$rows  { \"$name\", \"${file#piper/}\", $id, sizeof $id - 1 },
"
done
echo 'const LuaModule lua_modules[] = {'
printf '%s' "$rows"
echo '  { 0, 0, 0, 0 }'
echo '};'
