# Thousands of random passes; some of them under random sleeps, and with one queue a rank.
. "$srcdir/tests/lib/tap.sh"

seeds() { # NAME VARIABLE=VALUE...
  name=$1
  shift
  env "$@" "$PIPER" "$srcdir/tests/lua/pass_random.lua" >"$tmp/out" 2>&1
  ok $? "random passes, $name ($(grep -c '^ok' "$tmp/out") plans)"
  grep -v '^ok' "$tmp/out" | sed 's/^/# /' | head -20
}
seeds "seeds 1000 to 7000" PASS_SEEDS=1000:7000
seeds "random sleeps" PASS_SEEDS=7001:7600 PIPER_JITTER=6:200
seeds "one queue a rank" PASS_SEEDS=7601:8600 PIPER_STREAMS=1
seeds "memory that starts as NaN" PASS_SEEDS=8601:9600 PIPER_POISON=1
done_testing
