# Every Lua example in README.md and doc/*.md is a whole script that runs.
. "$srcdir/tests/lib/tap.sh"
for page in "$srcdir"/README.md "$srcdir"/doc/*.md; do
  awk -v dir="$tmp" -v page="$(basename "$page" .md)" '
    /^```lua$/ { n++; file = sprintf("%s/%s_%d.lua", dir, page, n); print "" > file; next }
    /^```$/ { if (file != "") close(file); file = ""; next }
    file != "" { print > file }' "$page"
done
# Sanitizers cost up to thirty times: then the long run of the README is a short one.
[ -z "$SANITIZED" ] || sed -i 's/run:steps(300)/run:steps(5)/' "$tmp"/*.lua
for script in "$tmp"/*.lua; do
  name=$(basename "$script")
  if "$PIPER" "$script" >"$tmp/out" 2>&1 </dev/null; then ok 0 "$name"; else ok 1 "$name"; sed 's/^/# /' "$tmp/out"; fi
done
done_testing
