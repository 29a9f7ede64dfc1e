# The transformer of samples/train_gpt.lua learns: below what pairs of bytes give (2.44 nats), and
# prints what the demo is to show.
. "$srcdir/tests/lib/tap.sh"
# Sanitizers cost up to thirty times: there a few steps have to do.
[ -n "$SANITIZED" ] && steps=4 warmup=2 || steps=120 warmup=20
sed "s/steps = 4, 8, 200/steps = 4, 8, $steps/; s/step % 20 == 0/step % 4 == 0/; s/warmup = 20/warmup = $warmup/" \
  "$srcdir/samples/train_gpt.lua" >"$tmp/gpt.lua"
cat /usr/share/common-licenses/* >"$tmp/text"
"$PIPER" "$tmp/gpt.lua" "$tmp/text" >"$tmp/out" 2>"$tmp/err"
ok $? "it runs"
sed "s/^/# /" "$tmp/err"
like "$(cat "$tmp/out")" '^step +4  loss [0-9.]+ +[0-9]+ tokens/s' "loss lines with tokens/s"
like "$(cat "$tmp/out")" '^ranks +4 \(0-3\)' "the plan's table"
differ=$(awk '/bytes predicted/ { n++; if ($3 != $6) bad++ } END { print n + 0, bad + 0 }' "$tmp/out")
is "$differ" "4 0" "predicted memory of 4 ranks is what was allocated"
if [ -n "$SANITIZED" ]; then
  skip "sanitizers are slow" "loss after $steps steps"
else
  last=$(awk '/^step/ { loss = $4 } END { print loss }' "$tmp/out")
  ok "$(awk -v l="$last" 'BEGIN { print !(l < 2.2) }')" "loss after $steps steps: $last, below 2.2"
fi
done_testing
