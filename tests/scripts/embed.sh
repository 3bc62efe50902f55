#!/bin/sh
# Tests of the ways into an application's build: what ./build.sh install leaves, found by pkg-config,
# and CMake's FetchContent. build.sh calls it; the last line is three numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
work=$PWD/build/embed
root=$PWD
filters=$*

. tests/scripts/wanted.sh

finish() { # TEST LOG: by the exit status before it
    if [ $? -eq 0 ]; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "FAILED  $1"
    tail -n 8 "$2"
}

# possible TEST COMMAND...: wanted, and the commands are there.
possible() {
    test=$1
    shift
    wanted "$test" || return 1
    for tool in "$@"; do
        command -v "$tool" >/dev/null 2>&1 && continue
        skipped=$((skipped + 1))
        echo "skipped $test: there is no $tool"
        return 1
    done
}

rm -rf "$work"
mkdir -p "$work"
awk '/^```c$/ { inside = 1; next } inside && /^```$/ { exit } inside' README.md >"$work/app.c"

pkg_config_test() {
    ./build.sh install --prefix "$work/prefix" || return 1
    PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
    export PKG_CONFIG_PATH
    version=$(sed -n 's/^#define DT_VERSION "\(.*\)"$/\1/p' "$work/prefix/include/dtrain.h")
    [ "$(pkg-config --modversion dtrain)" = "$version" ] || return 1
    # shellcheck disable=SC2046 # words are meant
    "$quickest" -O0 $(pkg-config --cflags dtrain) "$work/app.c" $(pkg-config --libs dtrain) \
        -o "$work/app" && "$work/app" && "$work/prefix/bin/dtrun" -n 2 true
}

# The application has the implementation from dtrain::dtrain, and one option of its own.
write_cmake_project() {
    mkdir -p "$work/project" "$work/tree" # with the header that src/ gives, whatever is committed
    ln -s "$root/CMakeLists.txt" "$root/src" "$root/build/include/dtrain.h" "$work/tree"
    sed '/DT_IMPLEMENTATION/d' "$work/app.c" >"$work/project/app.c"
    cat >"$work/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.14)
project(app LANGUAGES C)
include(FetchContent)
set(DTRAIN_DEFINITIONS DT_NO_VULKAN CACHE STRING "")
FetchContent_Declare(dtrain SOURCE_DIR "$work/tree")
FetchContent_MakeAvailable(dtrain)
add_executable(app app.c)
target_link_libraries(app PRIVATE dtrain::dtrain)
END
}

cmake_test() {
    write_cmake_project
    cmake -S "$work/project" -B "$work/project/build" -DCMAKE_C_COMPILER="$quickest" \
        -DCMAKE_C_FLAGS=-O0 && cmake --build "$work/project/build" --parallel 2 && "$work/project/build/app"
}

if possible an_installed_header_is_found_by_pkg_config pkg-config; then
    pkg_config_test >"$work/pkg.log" 2>&1
    finish an_installed_header_is_found_by_pkg_config "$work/pkg.log"
fi
if possible a_cmake_project_embeds_it_by_fetch_content cmake make; then
    cmake_test >"$work/cmake.log" 2>&1
    finish a_cmake_project_embeds_it_by_fetch_content "$work/cmake.log"
fi
echo "$passed $failed $skipped"
