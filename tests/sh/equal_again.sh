# Equal to one device again, when timing and queues change: random sleeps before every instruction,
# and all streams of a rank in one queue.
. "$srcdir/tests/lib/tap.sh"
EQUAL_SHORT=1
PASS_SEEDS=201:260
EQUAL_BITS=$tmp/bits # written by the first run without delays, compared in the others
export EQUAL_SHORT EQUAL_BITS PASS_SEEDS

again() { # NAME VARIABLE=VALUE...
  name=$1
  shift
  for script in $scripts; do
    env "$@" "$PIPER" "$srcdir/tests/lua/$script.lua" >"$tmp/out" 2>&1
    ok $? "$script, $name ($(grep -c '^ok' "$tmp/out") comparisons)"
    grep -v '^ok' "$tmp/out" | sed 's/^/# /' | head -20
  done
}
scripts=equal_transformer
again "as it comes"
scripts="equal_exact equal_transformer ignore_index evaluate"
for seed in 1 2 3; do
  again "random sleeps, seed $seed" PIPER_JITTER=$seed:300
done
again "one queue a rank, random sleeps" PIPER_STREAMS=1 PIPER_JITTER=4:300
scripts="moe_equal zero_exact pass_random"
again "random sleeps" PIPER_JITTER=5:200
scripts="equal_exact ignore_index moe_equal zero_exact pass_random"
again "one queue a rank" PIPER_STREAMS=1
again "memory that starts as NaN" PIPER_POISON=1
done_testing
