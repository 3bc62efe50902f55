#!/bin/sh
# What ./build.sh platforms calls: tests/platforms.c compiled for each platform without a warning,
# and run where something runs it. A table and the counts. One whose tools are missing skips.
#
#     tests/scripts/platforms.sh              all that compile in some 20 s of a processor
#     tests/scripts/platforms.sh all          and those that take longer, in the long form (DTRAIN_TEST_LONG)
#     tests/scripts/platforms.sh NAME...      these
set -u
cd "$(dirname "$0")/../.."
work=build/platforms
mkdir -p $work
quick='windows web wasi arm64 riscv64 armhf i386 musl musl_arm64 windows_arm64 macos macos_x86_64
    freebsd freebsd_arm64 clang19 clang22'
slow='mingw zig gcc_testing'
warnings='-Wall -Wextra -Wno-misleading-indentation -Werror'
export ZIG_GLOBAL_CACHE_DIR="$PWD/$work/zig_cache" ZIG_LOCAL_CACHE_DIR="$PWD/$work/zig_cache"
case " $* " in *' all '*) DTRAIN_TEST_LONG=1 ;; esac
plain=-O0 # where only the compiler's target is new, it takes a tenth of the time
if [ -n "${DTRAIN_TEST_LONG-}" ]; then plain=-O1; fi

have() { command -v "$1" >/dev/null 2>&1; }

# by_zig TARGET: by default zig compiles with UBSan, which takes six times as long.
by_zig() {
    compiler="$zig cc" flags="-target $1 -fno-sanitize=undefined" vulkan='' level=-O0 run=nothing
}

# platform NAME: what its compiler and its emulator are. emulated: takes 50 times as long.
platform() {
    compiler=clang flags='-fuse-ld=lld -static' libs='-lm -lpthread' run= needs= emulated=no
    level=-O1 # what has arithmetic of its own is tested as it is optimised; systems need not be
    vulkan=-DDT_NO_VULKAN classes=-DDT_NO_AVX512 # which has the bits of AVX2
    program=$work/$1
    case $1 in
    windows) # only Win32, as with clang-cl
        flags='--target=x86_64-w64-mingw32 -L/usr/lib/gcc/x86_64-w64-mingw32/12-win32 -static'
        libs=-lws2_32 program=$work/$1.exe level=-O0 vulkan= # at least it compiles
        needs="x86_64-w64-mingw32-ld /usr/lib/gcc/x86_64-w64-mingw32/12-win32/libgcc.a"
        run=$wine
        ;;
    mingw)
        compiler=x86_64-w64-mingw32-gcc libs=-lws2_32 program=$work/$1.exe run=$wine
        flags='-static -Wa,-muse-unaligned-vector-move' # GCC's stack has 16 bytes, vectors more
        ;;
    web)
        compiler=emcc program=$work/$1.js
        flags='-msimd128 -s NODERAWFS=1 -s ALLOW_MEMORY_GROWTH=1 -s EXIT_RUNTIME=1'
        flags="$flags -s TOTAL_STACK=1048576"
        run='node --no-experimental-fetch' # old ones of Emscripten take fetch() for a browser's
        ;;
    wasi)
        flags='--target=wasm32-wasi --sysroot=/usr -msimd128 -DDT_NO_THREADS' libs=-lm
        flags="$flags -Wl,--initial-memory=268435456" # Node ends badly where memory has grown
        flags="$flags -Wl,-z,stack-size=1048576" # WASI's 64 KiB lie next to the program's data
        needs='wasm-ld /usr/lib/wasm32-wasi/libc.a'
        run='node --no-warnings --experimental-wasi-unstable-preview1'
        run="$run --expose-gc tests/scripts/wasi.mjs"
        ;;
    arm64) flags='--target=aarch64-linux-gnu -fuse-ld=lld -static' run=qemu-aarch64 emulated=yes
        needs=/usr/aarch64-linux-gnu/lib/libc.a ;;
    riscv64) flags='--target=riscv64-linux-gnu -static' run=qemu-riscv64 emulated=yes level=$plain
        needs='riscv64-linux-gnu-ld /usr/riscv64-linux-gnu/lib/libc.a' ;;
    armhf)
        flags='--target=arm-linux-gnueabihf -fuse-ld=lld -static -D_FILE_OFFSET_BITS=64'
        needs=/usr/arm-linux-gnueabihf/lib/libc.a run=qemu-arm emulated=yes
        ;;
    i386)
        flags='--target=i686-linux-gnu -fuse-ld=lld -static -msse2 -mfpmath=sse'
        flags="$flags -D_FILE_OFFSET_BITS=64" level=$plain
        needs=/usr/i686-linux-gnu/lib/libc.a
        ;;
    musl)
        flags="--target=x86_64-linux-musl -nostdinc -isystem $(clang -print-resource-dir)/include"
        flags="$flags -isystem /usr/include/x86_64-linux-musl -c" program=$work/$1.o libs= level=-O0
        needs='musl-gcc /usr/include/x86_64-linux-musl/stdio.h'
        ;;
    musl_arm64) by_zig aarch64-linux-musl && run=qemu-aarch64 emulated=yes ;;
    windows_arm64) by_zig aarch64-windows-gnu && libs=-lws2_32 program=$work/$1.exe ;;
    macos) by_zig aarch64-macos ;;
    macos_x86_64) by_zig x86_64-macos ;;
    freebsd) by_zig x86_64-freebsd ;;
    freebsd_arm64) by_zig aarch64-freebsd ;;
    zig) by_zig x86_64-linux-gnu && flags='-target x86_64-linux-gnu' run= ;;
    # not static: Vulkan's loader and drivers are libraries
    clang19 | clang22) compiler=clang-${1#clang} flags=-fuse-ld=lld vulkan= level=$plain ;;
    gcc_testing) compiler=build/testing/gcc flags=-fuse-ld=lld vulkan= level=$plain ;;
    *) echo "platforms are: $quick $slow, or all" >&2; exit 2 ;;
    esac
}

# The first thing of the platform that is not there, or nothing.
missing() {
    for one in ${compiler%% *} $needs ${run%% *}; do
        case $one in
        nothing) ;;
        /*) if [ ! -e "$one" ]; then echo "$one"; return; fi ;;
        *) if ! have "$one"; then echo "$one"; return; fi ;;
        esac
    done
}

# Leaves in $spent the processor's seconds of what this process has run since the last call.
spent() {
    times >"$work/$name.times"
    total=$(tail -n 1 "$work/$name.times" | tr ms '  ' | awk '{ print $1 * 60 + $2 + $3 * 60 + $4 }')
    spent=$(echo "$total ${before:-0}" | awk '{ printf "%.1f", $1 - $2 }')
    before=$total
}

build() {
    # shellcheck disable=SC2086 # words are meant
    $compiler $level $warnings $classes $vulkan -Ibuild/include -I. -Itests $flags tests/platforms.c -o "$program" \
        $libs || return 1
    if [ "$name" != musl ]; then return 0; fi
    musl-gcc -static "$program" -o $work/musl && program=$work/musl
}

# Training on Fashion-MNIST takes minutes under an emulator of a CPU.
execute() {
    set --
    if [ $emulated = yes ]; then set -- --without fashion_mnist; fi
    # shellcheck disable=SC2086
    WINEPREFIX=$PWD/$work/wine WINEDEBUG=-all timeout 300 $run "$program" "$@"
}

# one NAME: its line goes to $work/NAME.line: passed, failed or skipped, and what there is to say.
one() {
    name=$1 built=yes
    platform "$name"
    lacks=$(missing)
    if [ -n "$lacks" ]; then
        echo "skipped|$name|-|-|there is no $lacks: ./build.sh setup platforms $name installs it"
        return
    fi
    spent
    build >"$work/$name.log" 2>&1 || built=no
    spent
    compiled=$spent
    if [ $built = no ]; then
        echo "FAILED|$name|$compiled|-|it does not compile: $work/$name.log"
        return
    fi
    if [ "$run" = nothing ]; then
        echo "passed|$name|$compiled|-|compiled and linked"
        return
    fi
    result=passed
    execute >"$work/$name.log" 2>&1 || result=FAILED
    spent
    echo "$result|$name|$compiled|$spent|$(tail -n 1 "$work/$name.log")"
}

wine=wine64
for at in /usr/lib/wine/wine64 /usr/bin/wine64 /usr/bin/wine; do
    if [ -x $at ]; then wine=$at; break; fi
done

# Of PyPI's ziglang: installed, or in the environment that setup made.
zig=zig
for at in build/venv/bin/python-zig python-zig; do
    if ! have zig && have "$at"; then zig=$at; fi
done

names=${*:-$quick}
if [ "$names" = all ]; then names="$quick $slow"; fi
for name in $names; do platform "$name"; done # before anything takes time

# As many at a time as there are processors; each next one as soon as one is through.
at_once=$(nproc 2>/dev/null || echo 1)
export work wine zig quick slow
for name in $names; do rm -f "$work/$name.line"; done
share=0
while [ $share -lt "$at_once" ]; do
    (
        at=0
        for name in $names; do
            if [ $((at % at_once)) = $share ]; then one "$name" >"$work/$name.line"; fi
            at=$((at + 1))
        done
    ) &
    share=$((share + 1))
done
wait

passed=0 failed=0 skipped=0
printf '%-8s %-13s %9s %6s  %s\n' '' platform compile,s run,s tests
for name in $names; do
    IFS='|' read -r result _ compiled ran text <"$work/$name.line"
    case $result in
    skipped) echo "skipped $name: $text" ;;
    *) printf '%-8s %-13s %9s %6s  %s\n' "$result" "$name" "$compiled" "$ran" "$text" ;;
    esac
    case $result in
    passed) passed=$((passed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)); grep -B 8 -E '^FAILED|(error|warning):' "$work/$name.log" | head -n 20 ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
