# Library code never ends the process and never prints: it returns a status. The archives tell what
# they call, whatever a macro or a comment says.
. "$srcdir/tests/lib/tap.sh"
[ "$NM" != : ] || skip_all "no nm"
[ -z "$SANITIZED" ] || skip_all "an instrumented build"
cd "$builddir" || bail "no build folder"

forbidden='exit|_exit|_Exit|quick_exit|abort|printf|vprintf|__printf_chk|__vprintf_chk|puts|putchar|perror|stdout|stderr'
for archive in libpiper.a libbind.a libkernels_*.a; do
  [ -f "$archive" ] || continue
  calls=$("$NM" -u "$archive" 2>/dev/null | awk -v forbidden="^($forbidden)(@.*)?\$" '
    /\.o:$/ { member = $1; next }
    $NF ~ forbidden && member !~ /(^|-)log\.o:$/ { print member " " $NF }')
  is "$calls" "" "$archive neither exits nor prints"
done
done_testing
