# Sourced by ci/test.sh and ci/deep.sh with their arguments: runs lanes one after the other and prints a summary.
set -uo pipefail
export CARGO_TERM_COLOR=never RUST_BACKTRACE=1
mkdir -p .cache/ci
wanted=" $* " asked=("$@") lanes=()
began=$SECONDS
passed=0 failed=0 not_run=0
summary=()
# Names of lanes that did not run, and of tests and steps that did not run in lanes that passed or failed.
lanes_not_run=() tests_not_run=()

# lane NAME COMMAND...: exit status 0 is passed, 77 not run (the last line of output says why), any other failed. The
# command runs in a subshell without input. CPU seconds distinguish a slow lane from a busy machine. A line of output with
# "NOT RUN: NAME: REASON" says that a test or a step did not run; it is counted, and no lane passes without naming it.
lane() {
    local name=$1 start=$SECONDS cpu log status took line
    shift
    lanes+=("$name")
    [ "$wanted" = "  " ] || case $wanted in *" $name "*) ;; *) return ;; esac
    log=.cache/ci/$name.log
    cpu=$(cpu_seconds)
    echo "== $name"
    ("$@") </dev/null 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    took="$((SECONDS - start)) s, CPU $(($(cpu_seconds) - cpu)) s"
    case $status in
        0) passed=$((passed + 1)) && summary+=("passed   $name ($took)") ;;
        77) not_run=$((not_run + 1)) && lanes_not_run+=("$name") && summary+=("not run  $name: $(tail -n 1 "$log")") ;;
        *) failed=$((failed + 1)) && summary+=("FAILED   $name (exit $status, $took)") ;;
    esac
    while read -r line; do
        summary+=("         NOT RUN: $line")
        tests_not_run+=("${line%%: *}")
    done < <(tr -d '\r' <"$log" | grep -ao 'NOT RUN: .*: .*' | sed 's/^NOT RUN: //' | sort -u)
}

# beside NAME COMMAND...: begins the command of a lane in the background, for one that leaves a core idle. `lane NAME ended NAME`
# waits for it, prints what it said, and judges it as any other; its CPU seconds count for the lanes that run meanwhile.
beside() {
    local name=$1
    shift
    [ "$wanted" = "  " ] || case $wanted in *" $name "*) ;; *) return ;; esac
    rm -f ".cache/ci/$name.status"
    (
        ("$@") </dev/null >".cache/ci/$name.beside" 2>&1
        echo $? >".cache/ci/$name.status"
    ) &
}
ended() {
    local status=.cache/ci/$1.status
    until [ -s "$status" ]; do sleep 1; done
    cat ".cache/ci/$1.beside"
    return "$(cat "$status")"
}

# tested SECONDS ARGUMENT...: `cargo test` with these arguments and a time limit. Each name behind `--`, of tests to run or to skip,
# must be part of a test's name: otherwise a lane passes without the tests that were renamed.
tested() {
    local seconds=$1
    shift
    named "$@" && timeout "$seconds" cargo test "$@"
}
named() {
    local argument behind="" build=() names=() tests name
    for argument; do
        case $behind$argument in
            --) behind=yes ;;
            yes--test-threads) echo "write --test-threads=N"; return 1 ;;
            yes-*) ;;
            yes*) names+=("$argument") ;;
            *) build+=("$argument") ;;
        esac
    done
    [ ${#names[@]} -gt 0 ] || return 0
    # The listing hides the compiler's errors, so this shows them. `--quiet` may be among the arguments, and cargo takes it once only.
    CARGO_TERM_QUIET=true cargo test --no-run "${build[@]}" || return
    tests=$(cargo test "${build[@]}" -- --list 2>/dev/null | sed -n 's/: test$//p')
    for name in "${names[@]}"; do
        grep -qF -- "$name" <<<"$tests" || { echo "no test has a name with '$name' (cargo test ${build[*]})"; return 1; }
    done
}

# CPU seconds of this shell and of all its children that have exited.
cpu_seconds() { awk '{ print int(($14 + $15 + $16 + $17) / hz) }' hz="$(getconf CLK_TCK)" "/proc/$$/stat"; }

# Prints the summary, whose last line names all that did not run. The exit status is 0 if every lane that was asked for
# exists, none failed, and at least one passed.
finish() {
    local last name
    for name in "${asked[@]}"; do
        case " ${lanes[*]} " in
            *" $name "*) ;;
            *) failed=$((failed + 1)) && summary+=("FAILED   there is no lane \`$name\`; the lanes are ${lanes[*]}") ;;
        esac
    done
    echo
    printf '%s\n' "${summary[@]}"
    last="lanes: $passed passed, $failed failed, $not_run not run$(list "${lanes_not_run[@]}") in $((SECONDS - began)) s"
    [ ${#tests_not_run[@]} = 0 ] || last+="; ${#tests_not_run[@]} tests or steps not run$(list "${tests_not_run[@]}")"
    echo "$last"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
list() { [ $# = 0 ] || printf ' (%s)' "$(printf '%s, ' "$@" | sed 's/, $//')"; }
