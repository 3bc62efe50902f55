#!/bin/sh
# Tests of build.sh where something is missing (tools/shared/needs.sh), on fake machines. A machine
# is a folder of commands, of which some are stubs, and a list of installed packages. build.sh calls
# it; names that contain one of the arguments are run, or all. The last line is three numbers:
# passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
root=$PWD
work=$root/build/test_setup
filters=$*
unset CI CC CFLAGS VK_DRIVER_FILES VK_ADD_DRIVER_FILES VK_ICD_FILENAMES LD_LIBRARY_PATH
unset XDG_CONFIG_HOME XDG_CONFIG_DIRS XDG_DATA_HOME

. tests/scripts/wanted.sh

# What each command asks apt for on a machine that has nothing.
train='gcc libc6-dev dataset-fashion-mnist'
build='gcc libc6-dev libvulkan-dev libssl-dev zlib1g-dev libpng-dev libjpeg-dev'
gpu='gcc libc6-dev libvulkan1 mesa-vulkan-drivers'
bench='gcc libc6-dev python3'
header=python3
shaders='python3 glslang-tools spirv-tools'
fuzz='gcc libc6-dev clang libclang-rt-dev'
test='gcc libc6-dev python3 mesa-vulkan-drivers libvulkan1 chromium-common vulkan-validationlayers
    libvulkan-dev clang g++ locales cmake make pkg-config openmpi-bin libopenmpi-dev mpich slurm-wlm munge
    libpmix-dev iproute2 libssl-dev zlib1g-dev libpng-dev libjpeg-dev dataset-fashion-mnist python3-venv'
if [ "$(uname -m)" = x86_64 ]; then
    test="$test gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
fi
commands='train test build gpu bench header shaders fuzz'
compiled='train test build gpu bench' # those that compile first of all

# ---- the machine

stub() { # NAME, and its text on standard input
    { echo '#!/bin/sh' && cat; } >"$machine/bin/$1"
    chmod +x "$machine/bin/$1"
}

# One of root, with apt-get and no compiler. What its stubs are called with is in `events`.
make_machine() {
    rm -rf "$work"
    machine=$work/template
    mkdir -p "$machine/bin" "$machine/tree/build" "$machine/installed" "$machine/unknown"
    : >"$machine/events"
    for tool in sh sed grep cat mkdir rmdir rm cp mv ln touch find head tail dirname basename uname cmp cut \
        tr nproc sha256sum gzip env wc ls sort chmod date mktemp sleep awk; do
        ln -s "$(command -v $tool)" "$machine/bin/$tool"
    done
    for entry in dtrain.h examples shaders src tests tools; do ln -s "$root/$entry" "$machine/tree/$entry"; done
    cp build.sh "$machine/tree/build.sh"
    echo 'echo 0' | stub id
    echo 'echo "libc.so.6"; cat "$MACHINE/loader" 2>/dev/null' | stub ldconfig
    stub dpkg-query <<'END'
for package; do :; done
[ -e "$MACHINE/installed/$package" ] && echo installed
END
    stub apt-cache <<'END'
[ ! -e "$MACHINE/unknown/$2" ]
END
    stub apt-get <<'END'
case "$*" in
update) echo update >>"$MACHINE/events" && rm -f "$MACHINE/no_lists"; exit ;;
esac
packages=
for word; do
    case $word in -* | install | DPkg::*) ;; *) packages="$packages $word" ;; esac
done
echo "install$packages" >>"$MACHINE/events"
if [ -e "$MACHINE/no_lists" ] || [ -e "$MACHINE/apt_fails" ]; then exit 100; fi
for package in $packages; do
    if [ -e "$MACHINE/unknown/$package" ]; then exit 100; fi
done
for package in $packages; do sh "$MACHINE/bin/installs" "$package"; done
END
    stub installs <<'END'
: >"$MACHINE/installed/$1"
tool() { cp "$MACHINE/bin/tool" "$MACHINE/bin/$1"; }
case $1 in
gcc) cp "$MACHINE/bin/compiler" "$MACHINE/bin/cc" && tool gcc ;;
clang) cp "$MACHINE/bin/compiler" "$MACHINE/bin/clang" && tool clang++ ;;
lld) tool ld.lld && tool wasm-ld ;;
binutils) tool nm && tool size ;;
python3 | g++ | clang-format-14) tool "$1" ;;
glslang-tools) tool glslangValidator ;;
spirv-tools) tool spirv-opt && tool spirv-val ;;
libvulkan1) echo libvulkan.so.1 >"$MACHINE/loader" ;;
mesa-vulkan-drivers) mkdir -p "$MACHINE/share/vulkan/icd.d" && : >"$MACHINE/share/vulkan/icd.d/lvp.json" ;;
dataset-fashion-mnist)
    mkdir -p build/data
    for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
        : >"build/data/$name-ubyte"
    done
    ;;
esac
END
    stub tool <<'END'
case "$*" in *amalgamate*) mkdir -p build/include && cp dtrain.h build/include ;; esac
case "$*" in *-dumpversion*) echo 14 ;; *' -c '* | '-c '*) ;; *) echo "${0##*/} $*" >>"$MACHINE/events" ;; esac
END
    # Finds the headers of installed packages; compiles to a program that says its name.
    stub compiler <<'END'
case "$*" in
-dumpversion) echo 14 && exit ;;
*fuzzer*) exit ;;
*-E*)
    while read -r line; do
        case $line in
        *vulkan.h*) package=libvulkan-dev ;;
        *ssl.h*) package=libssl-dev ;;
        *zlib.h*) package=zlib1g-dev ;;
        *png.h*) package=libpng-dev ;;
        *jpeglib.h*) package=libjpeg-dev ;;
        *) continue ;;
        esac
        [ -e "$MACHINE/installed/$package" ] || exit 1
    done
    exit
    ;;
esac
echo "compile $*" >>"$MACHINE/events"
if [ ! -e "$MACHINE/compiles" ]; then exit 1; fi
while [ "$1" != -o ]; do shift; done
{ echo '#!/bin/sh' && echo 'echo "ran ${0##*/} $*"'; } >"$2"
chmod +x "$2"
END
}

fresh() {
    machine=$work/machine
    rm -rf "$machine"
    cp -RP "$work/template" "$machine"
}

has() { for package in "$@"; do (cd "$machine/tree" && MACHINE=$machine sh "$machine/bin/installs" "$package"); done; }

# run WORDS...: ./build.sh there, without a terminal; its output and status are left in out and status.
run() {
    (cd "$machine/tree" && PATH=$machine/bin MACHINE=$machine HOME=$machine XDG_DATA_DIRS=$machine/share \
        sh build.sh "$@" </dev/null >"$machine/out" 2>&1)
    status=$?
}

# typed ANSWER WORDS...: the same on a terminal, where ANSWER is typed.
typed() {
    answer=$1
    shift
    cat >"$machine/session" <<END
cd "$machine/tree"
PATH=$machine/bin MACHINE=$machine HOME=$machine XDG_DATA_DIRS=$machine/share
export PATH MACHINE HOME XDG_DATA_DIRS
exec sh build.sh $*
END
    printf "$answer" | timeout 60 script -qec "sh $machine/session" /dev/null >"$machine/out" 2>&1
    status=$?
}

sorted() { printf '%s\n' $* | sort -u | tr '\n' ' '; }

# expect WHAT COMMAND...: false and a line, with what came out, unless the command is true.
expect() {
    what=$1
    shift
    if "$@"; then return 0; fi
    echo "  $what"
    sed 's/^/    | /' "$machine/out" | tail -n 8
    sed 's/^/    > /' "$machine/events" | cut -c 1-110 | head -n 4
    return 1
}

is_once() { [ "$(grep -c "$1" "$machine/out")" = 1 ]; }
questions() { [ "$(grep -c 'Y/n' "$machine/out")" = "$1" ]; }
says_no() { ! grep -q "$1" "$machine/out"; }
no_compiling() { ! grep -q '^compile' "$machine/events"; }
nothing_installed() { ! grep -q '^install' "$machine/events"; }

# The one line, with these packages, for root; before apt-get stands what is in $2.
line_is() {
    is_once 'apt-get install' || return 1
    shown=$(tr -d '\r' <"$machine/out" | sed -n "s/^ *${2-}apt-get install --no-install-recommends //p")
    [ -n "$shown" ] && [ "$(sorted $shown)" = "$(sorted $1)" ]
}

# apt-get was called once, with these packages, before all else.
installed_first() {
    [ "$(grep -c '^install' "$machine/events")" = 1 ] &&
        [ "$(sorted $(sed -n '1s/^install //p' "$machine/events"))" = "$(sorted $1)" ]
}

# packages_of COMMAND
packages_of() { eval "printf '%s ' \$$1"; }

# few WAY: all ways for two commands, and for the others the first of each list.
few() {
    case $command,$1 in
    train,* | test,* | *,'y\n' | *,'n\n' | *,--yes | *,) ;;
    *) return 1 ;;
    esac
}

# ---- the tests

a_terminal_is_asked_once_and_yes_installs() {
    for command in $commands; do
        for answer in 'y\n' '\n' 'Yes\n'; do
            few "$answer" || continue
            fresh
            typed "$answer" $command
            wants=$(packages_of $command)
            expect "$command, '$answer': one question" questions 1 &&
                expect "$command: the line" line_is "$wants" &&
                expect "$command: apt-get" installed_first "$wants" || return 1
            case " $compiled " in *" $command "*) expect "$command goes on" grep -q ^compile "$machine/events" || return 1 ;; esac
        done
    done
}

a_terminal_that_says_no_ends_the_command_before_it_compiles() {
    for command in $commands; do
        for answer in 'n\n' 'no\n' '\004'; do
            few "$answer" || continue
            fresh
            typed "$answer" $command
            expect "$command: one question" questions 1 &&
                expect "$command, '$answer': the line" line_is "$(packages_of $command)" &&
                expect "$command: installs nothing" nothing_installed &&
                expect "$command: compiles nothing" no_compiling &&
                expect "$command: fails" [ $status != 0 ] || return 1
        done
    done
}

yes_and_ci_install_without_a_question() {
    for command in $commands; do
        for way in --yes CI=true CI=1 --install; do
            few "$way" || continue
            fresh
            case $way in
            CI=*) export "${way?}" && run $command && unset CI ;;
            *) run $command $way ;;
            esac
            expect "$command $way: no question" questions 0 &&
                expect "$command $way: apt-get" installed_first "$(packages_of $command)" || return 1
        done
        fresh
        typed 'n\n' $command --yes
        expect "$command --yes on a terminal" questions 0 &&
            expect "$command: apt-get" installed_first "$(packages_of $command)" || return 1
    done
}

without_a_terminal_the_line_is_shown_and_nothing_is_compiled() {
    for command in $commands; do
        for way in '' --no-install CI=false; do
            few "$way" || continue
            fresh
            case $way in
            CI=*) export "${way?}" && run $command && unset CI ;;
            *) run $command $way ;;
            esac
            expect "$command $way: no question" questions 0 &&
                expect "$command $way: the line" line_is "$(packages_of $command)" &&
                expect "$command: installs nothing" nothing_installed &&
                expect "$command: compiles nothing" no_compiling &&
                expect "$command: fails" [ $status != 0 ] || return 1
        done
    done
}

without_apt_missing_packages_are_named_in_words() {
    for command in $commands; do
        for way in '' --yes; do
            fresh
            rm "$machine/bin/apt-get" "$machine/bin/dpkg-query"
            run $command $way
            words='a C compiler'
            case $command in header | shaders) words='Python 3' ;; esac
            expect "$command $way: names $words" is_once "needs .*$words" &&
                expect "$command: no line" says_no 'apt-get install' &&
                expect "$command: compiles nothing" no_compiling &&
                expect "$command: fails" [ $status != 0 ] || return 1
        done
    done
}

a_user_other_than_root_installs_by_sudo_or_is_shown_the_line() {
    for command in train test; do
        wants=$(packages_of $command)
        fresh
        echo 'echo 1000' | stub id
        run $command --yes
        expect "$command --yes without sudo: the line" line_is "$wants" &&
            expect 'for root' grep -q 'as root' "$machine/out" && expect 'installs nothing' nothing_installed &&
            expect 'compiles nothing' no_compiling && expect 'fails' [ $status != 0 ] &&
            expect 'says no --yes' says_no 'with --yes' || return 1
        typed 'y\n' $command
        expect "$command without sudo: no question" questions 0 && expect fails [ $status != 0 ] || return 1
        echo 'echo "sudo" >>"$MACHINE/sudo"; exec "$@"' | stub sudo
        run $command
        expect "$command: the line" line_is "$wants" 'sudo ' && expect 'installs nothing' nothing_installed || return 1
        run $command --yes
        expect "$command --yes: by sudo" [ -e "$machine/sudo" ] && expect installs installed_first "$wants" || return 1
    done
}

# They ask for it once: a no to what is optional is remembered.
without_optional_packages_a_command_continues() {
    for command in build test; do
        for way in pipe terminal; do
            fresh
            has gcc libc6-dev python3
            if [ $way = pipe ]; then run $command; else typed 'n\n' $command; fi
            expect "$command: names it" is_once 'can do without .*zlib' &&
                expect "$command: installs nothing" nothing_installed &&
                expect "$command: compiles" grep -q '^compile' "$machine/events" || return 1
        done
        expect "$command: asked" questions 1 || return 1
        typed 'y\n' $command
        expect "$command: asked once" questions 0 && expect 'installs nothing' nothing_installed || return 1
    done
}

without_missing_packages_nothing_is_printed() {
    for command in $commands; do
        fresh
        has $(packages_of $command)
        mkdir -p "$machine/tree/build/venv"
        echo 'numpy safetensors tensorboard onnx onnxruntime' >"$machine/tree/build/venv/ready"
        typed 'y\n' $command
        expect "$command: no question" questions 0 && expect 'no apt-get' nothing_installed &&
            expect 'no line' [ "$(grep -c 'apt-get\|can do without' "$machine/out")" = 0 ] || return 1
    done
}

# The caller has agreed. Runtimes of Clang go by the version that is there.
setup_installs_everything_without_a_question() {
    fresh
    typed 'n\n' setup
    expect 'no question' questions 0 &&
        expect everything installed_first "$test clang-format-14 binutils glslang-tools spirv-tools spirv-cross libclang-rt-dev" || return 1
    fresh
    run setup platforms wasi musl
    expect 'compilers first' grep -qx 'install gcc libc6-dev python3 clang lld' "$machine/events" &&
        expect platforms grep -qx 'install nodejs wasi-libc libclang-rt-14-dev-wasm32 musl-tools' "$machine/events" &&
        expect succeeds [ $status = 0 ] || return 1
    run setup platforms vax
    expect 'an unknown one' grep -q "no 'vax'" "$machine/out" && expect fails [ $status != 0 ]
}

# A fresh system has no lists; another lacks a package that is optional.
lists_are_fetched_only_after_apt_has_failed() {
    fresh
    run train --yes
    expect 'no update' [ "$(grep -c update "$machine/events")" = 0 ] || return 1
    fresh
    : >"$machine/no_lists"
    run train --yes
    expect 'an update' [ "$(sed -n '1s/ .*//p; 2p; 3s/ .*//p' "$machine/events" | tr '\n' ' ')" = 'install update install ' ] &&
        expect 'goes on' grep -q '^compile' "$machine/events" || return 1
    fresh
    : >"$machine/unknown/chromium-common"
    run test --yes
    expect 'without it' grep -q 'no package chromium-common' "$machine/out" &&
        expect 'the others' [ -e "$machine/installed/mpich" ] &&
        expect 'goes on' grep -q '^compile' "$machine/events" || return 1
    fresh
    : >"$machine/apt_fails"
    run train --yes
    expect 'fails' [ $status != 0 ] && expect 'compiles nothing' no_compiling || return 1
}

# What is compiled for one is there for the others; with a library more it is compiled again.
train_compiles_the_library_once_for_all_models() {
    fresh
    : >"$machine/compiles"
    has $train
    for model in '' '--model mlp' '--model cnn' '--model resnet' '--data /somewhere'; do
        # shellcheck disable=SC2086 # words are meant
        run train $model --epochs 1
        case $model in
        '' | '--model mlp') wants='ran fashion_mnist --data build/data --epochs 1' ;;
        --data*) wants="ran fashion_mnist $model --epochs 1" ;;
        *) wants="ran fashion_mnist_conv --data build/data $model --epochs 1" ;;
        esac
        expect "train $model" grep -qx "$wants" "$machine/out" || return 1
    done
    expect 'seven parts, once' [ "$(grep -c 'DDT_IMPLEMENTATION_' "$machine/events")" = 7 ] &&
        expect 'two programs, once' [ "$(grep -c 'examples/' "$machine/events")" = 2 ] || return 1
    has zlib1g-dev
    run train
    expect 'compiled again' [ "$(grep -c 'IMPLEMENTATION_.*\|DT_WITH_ZLIB' "$machine/events")" = 14 ]
}

# Its download is tried where curl is, and before anything is compiled.
train_looks_for_data_before_it_compiles() {
    fresh
    has gcc libc6-dev
    run train
    expect 'the line' line_is dataset-fashion-mnist && expect fails [ $status != 0 ] &&
        expect 'compiles nothing' no_compiling || return 1
    if [ -e /usr/share/datasets/fashion-mnist ]; then return 0; fi # it is unpacked from there
    echo 'echo "curl $*" >>"$MACHINE/events"; exit 22' | stub curl
    run train
    expect downloads grep -q '^curl' "$machine/events" && expect 'compiles nothing' no_compiling &&
        expect fails [ $status != 0 ]
}

# Of an SDK, of a driver that Debian does not pack.
gpu_finds_a_loader_and_a_driver_wherever_they_are() {
    fresh
    has gcc libc6-dev
    mkdir -p "$machine/sdk" "$machine/.config/vulkan/icd.d"
    : >"$machine/sdk/libvulkan.so.1"
    run gpu
    expect 'both are missing' line_is 'libvulkan1 mesa-vulkan-drivers' && expect 'compiles nothing' no_compiling || return 1
    run gpu --loader "$machine/sdk/libvulkan.so.1"
    expect 'with --loader it goes on' grep -q '^compile' "$machine/events" || return 1
    : >"$machine/events"
    export LD_LIBRARY_PATH=/nowhere:$machine/sdk
    run gpu
    expect 'a driver is missing' line_is mesa-vulkan-drivers && expect 'compiles nothing' no_compiling
    found=$?
    : >"$machine/.config/vulkan/icd.d/own.json"
    run gpu
    unset LD_LIBRARY_PATH
    expect 'nothing is missing' grep -q '^compile' "$machine/events" && expect 'and no line' says_no apt-get && return $found
}

# plan and bench ask a program for the rest of their help.
every_command_prints_its_help() {
    fresh
    run
    expect 'few lines' [ "$(wc -l <"$machine/out")" -le 12 ] && expect succeeds [ $status = 0 ] || return 1
    for command in $(sed -n "s/^commands='\(.*\)'/\1/p" build.sh); do
        run help
        expect "help has $command" grep -q "^\./build\.sh $command " "$machine/out" || return 1
        case $command in plan | bench) continue ;; esac
        run "$command" --help
        expect "$command --help" grep -q "^\./build\.sh $command " "$machine/out" &&
            expect "$command --help succeeds" [ $status = 0 ] && expect 'compiles nothing' no_compiling || return 1
    done
    run nonsense
    expect 'an unknown one' grep -q "unknown command 'nonsense'" "$machine/out" && expect fails [ $status = 1 ]
}

another_compiler_is_chosen_by_its_name() {
    for compiler in clang clang-16 gcc-13; do
        fresh
        export CC=$compiler
        run devices
        unset CC
        expect "CC=$compiler" line_is "$compiler libc6-dev" && expect 'fails' [ $status != 0 ] || return 1
    done
    fresh
    export CC=/opt/none/cc
    run devices --yes
    unset CC
    expect 'CC=/opt/none/cc' grep -q '/opt/none/cc.* is missing' "$machine/out" && expect 'fails' [ $status != 0 ] &&
        expect 'installs nothing' nothing_installed
}

make_machine
for test_name in a_terminal_is_asked_once_and_yes_installs \
    a_terminal_that_says_no_ends_the_command_before_it_compiles \
    yes_and_ci_install_without_a_question without_a_terminal_the_line_is_shown_and_nothing_is_compiled \
    without_apt_missing_packages_are_named_in_words a_user_other_than_root_installs_by_sudo_or_is_shown_the_line \
    without_optional_packages_a_command_continues without_missing_packages_nothing_is_printed \
    setup_installs_everything_without_a_question \
    lists_are_fetched_only_after_apt_has_failed train_compiles_the_library_once_for_all_models \
    train_looks_for_data_before_it_compiles gpu_finds_a_loader_and_a_driver_wherever_they_are \
    every_command_prints_its_help another_compiler_is_chosen_by_its_name; do
    wanted "setup_$test_name" || continue
    if ! script -qec true /dev/null >/dev/null 2>&1; then
        skipped=$((skipped + 1))
        echo "skipped setup_$test_name: there is no script(1) that makes a terminal"
    elif $test_name; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  setup_$test_name"
    fi
done
echo "$passed $failed $skipped"
