# Sourced by the lanes: installs tools that a bare machine lacks, or says how to install them.

# need COMMAND PACKAGE...: makes sure that a program (or, with a slash, a file) exists, as root from Debian packages. If
# that fails, the last line says what to run and the lane counts as not run (exit status 77).
need() {
    local program=$1 start=$SECONDS
    shift
    present "$program" && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $*"
        export DEBIAN_FRONTEND=noninteractive
        # Lanes that run beside each other install in turns: apt gives up at once where another has its lock.
        {
            # Without the descriptor: what a package starts would keep the lock.
            flock -w 420 9 && { present "$program" || {
                timeout 120 apt-get -qq update && timeout 300 apt-get -qq install -y --no-install-recommends "$@"
            } </dev/null >.cache/apt.log 2>&1 9>&- || tail -n 5 .cache/apt.log; }
        } 9>.cache/apt.lock
        present "$program" && echo "installed $* in $((SECONDS - start)) s" && return
    fi
    echo "$program is missing: sudo apt-get install $*"
    exit 77
}
present() { case $1 in */*) compgen -G "$1" >/dev/null ;; *) command -v "$1" >/dev/null ;; esac; }

# venv FOLDER REQUIREMENT...: makes a Python environment with these wheels, or exits with 77 and the commands to run.
venv() {
    local folder=$1 stamp
    shift
    stamp=$folder/.requirements
    [ "$(cat "$stamp" 2>/dev/null)" = "$*" ] && return
    need python3 python3 python3-venv
    python3 -c 'import ensurepip' 2>/dev/null || need '/usr/lib/python3*/ensurepip' python3-venv
    if python3 -m venv "$folder" && timeout 600 "$folder/bin/pip" install -q "$@"; then
        echo "$*" >"$stamp"
        return
    fi
    echo "could not install $*: python3 -m venv $folder && $folder/bin/pip install ${*@Q}"
    exit 77
}

# Installs the CUDA 13.0 assembler and compiler from PyPI and sets CUDA_BIN to their folder.
cuda_compiler() {
    venv .cache/cuda13 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' \
        'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
    CUDA_BIN=$(dirname "$(find "$PWD/.cache/cuda13" -type f -name ptxas -perm -u+x -print -quit)")
}
