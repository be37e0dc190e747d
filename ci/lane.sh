# Sourced by ci/test.sh and ci/deep.sh with their arguments: runs lanes one after the other and prints a summary.
set -uo pipefail
export CARGO_TERM_COLOR=never RUST_BACKTRACE=1
mkdir -p .cache/ci
wanted=" $* "
began=$SECONDS
passed=0 failed=0 not_run=0
summary=()

# lane NAME COMMAND...: exit status 0 is passed, 77 not run (the last line of output says why), any other failed. The
# command runs in a subshell without input. CPU seconds distinguish a slow lane from a busy machine.
lane() {
    local name=$1 start=$SECONDS cpu log status took
    shift
    [ "$wanted" = "  " ] || case $wanted in *" $name "*) ;; *) return ;; esac
    log=.cache/ci/$name.log
    cpu=$(cpu_seconds)
    echo "== $name"
    ("$@") </dev/null 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    took="$((SECONDS - start)) s, CPU $(($(cpu_seconds) - cpu)) s"
    case $status in
        0) passed=$((passed + 1)) && summary+=("passed   $name ($took)") ;;
        77) not_run=$((not_run + 1)) && summary+=("not run  $name: $(tail -n 1 "$log")") ;;
        *) failed=$((failed + 1)) && summary+=("FAILED   $name (exit $status, $took)") ;;
    esac
}

# CPU seconds of this shell and of all its children that have exited.
cpu_seconds() { awk '{ print int(($14 + $15 + $16 + $17) / hz) }' hz="$(getconf CLK_TCK)" "/proc/$$/stat"; }

# Prints the summary. The exit status is 0 if no lane failed and at least one passed.
finish() {
    echo
    printf '%s\n' "${summary[@]}"
    echo "lanes: $passed passed, $failed failed, $not_run not run in $((SECONDS - began)) s"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
