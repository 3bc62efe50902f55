# Part of build.sh: what is compiled, and only when it is older than what it is made of.

LIBS='-lm -ldl -lpthread'
out=build # where objects and programs go

# newer TARGET SOURCE...: whether TARGET is there and no SOURCE (a file or a folder) is newer.
newer() {
    target=$1
    shift
    [ -e "$target" ] && [ -z "$(find "$@" -newer "$target" -type f 2>/dev/null | head -n 1)" ]
}

# Objects made with another compiler, other flags or other libraries are useless.
fresh_flags() {
    with_readers
    with_openssl
    flags="$CC $CFLAGS$readers $secure"
    if [ "$(cat $out/flags 2>/dev/null || true)" != "$flags" ]; then
        rm -f $out/*.o $out/dtest $out/dtest_comm $out/dtbench $out/dtgpu $out/dtinfo $out/fashion_mnist*
        printf '%s\n' "$flags" >$out/flags
    fi
}

# What everything here is compiled with; the one at the top is as old as its last commit (./build.sh header).
dtrain_h=build/include/dtrain.h
here='-Ibuild/include -I.'

# Without Python the committed header is taken as it is: `train` needs a C compiler only.
header() {
    if newer build/header.stamp src shaders/lib tools/generate/amalgamate tools/generate/api && [ -e $dtrain_h ]; then
        return 0
    fi
    mkdir -p build/include
    if ! have python3; then
        [ -e dtrain.h ] || die "dtrain.h is missing and python3 is needed to write it"
        cmp -s dtrain.h $dtrain_h || cp dtrain.h $dtrain_h
        return 0
    fi
    begun=build/header.$$ # others may do the same, as .ci/run's two
    touch $begun
    python3 tools/generate/amalgamate
    python3 tools/generate/api
    mv $begun build/header.stamp
}

# What a file that only declares sees of dtrain.h. It is compiled again when that changes, not with
# every line of the implementation.
public_part() {
    if newer build/public_part.stamp $dtrain_h; then return 0; fi
    part=build/public_part.$$
    sed '/^#if (defined DT_IMPLEMENTATION/q' $dtrain_h >$part
    if cmp -s $part build/public_part.h; then rm $part; else mv $part build/public_part.h; fi
    touch build/public_part.stamp
}

# compile OUTPUT SOURCE FLAGS...: one program from one file and its includes, which have its name
# with a suffix.
compile() {
    output=$1 source=$2
    shift 2
    if newer "$output" "${source%.c}"* $dtrain_h build/flags; then return 0; fi
    say "$CC $source"
    case $source in tools/view/dtinfo.c) set -- "$@" -O0 ;; esac # it computes nothing
    # shellcheck disable=SC2086 # words are meant
    "$CC" $CFLAGS "$@" $here "$source" -o "$output" $LIBS
}

# What files are read by, where it is: without it deflated arrays, or pictures, are refused.
with_readers() {
    readers='' reader_libs=''
    for reader in 'ZLIB zlib.h -lz' 'PNG png.h -lpng' 'JPEG jpeglib.h -ljpeg'; do
        # shellcheck disable=SC2086 # words are meant
        set -- $reader
        if includes "$2"; then
            readers="$readers -DDT_WITH_$1" reader_libs="$reader_libs $3"
        fi
    done
}

# OpenSSL, where it is: without it the collectives have neither MAC nor TLS, and so no tests of them.
with_openssl() {
    secure='' secure_libs=''
    if ! includes openssl/ssl.h; then return 0; fi
    secure=-DDT_WITH_OPENSSL secure_libs='-lssl -lcrypto'
}

# The implementation, once for all programs that need only the public header. Each of them compiled
# by itself, as its first lines say, takes a minute. Its parts compile beside each other.
implementation='TRAIN GRAPH SIMD DATA COMM BACKEND KERNELS' # the slowest first
# shellcheck disable=SC2086 # words are meant
library=$(printf 'build/dtrain_%s.o ' $implementation)
export library

build_part() {
    if newer "build/dtrain_$1.o" $dtrain_h build/flags; then return 0; fi
    say "$CC dtrain.h: $1"
    # shellcheck disable=SC2086 # words are meant
    "$CC" $CFLAGS $readers "-DDT_IMPLEMENTATION_$1" -x c -c $dtrain_h -o "build/dtrain_$1.o"
}

# shellcheck disable=SC2086 # words are meant
build_library() { in_lanes $implementation; }

# linked SOURCE: only declarations, with the library.
linked() {
    output=build/$(basename "$1" .c)
    if newer "$output" "$1" examples/*.h $library build/flags; then return 0; fi
    say "$CC $1"
    # shellcheck disable=SC2086
    "$CC" $CFLAGS -DDTI_IMPLEMENTED $here "$1" $library -o "$output" $LIBS $reader_libs
}

# in_lanes WORK...: a lane for each processor.
in_lanes() {
    rm -rf $out/taken
    mkdir $out/taken
    fresh_flags
    public_part
    lanes=$(processors) pids='' failed=no
    while [ "$lanes" -gt 0 ]; do
        build_lane "$@" &
        pids="$pids $!"
        lanes=$((lanes - 1))
    done
    for pid in $pids; do wait "$pid" || failed=yes; done
    if [ $failed = yes ]; then die "what is above does not compile"; fi
}

# build_lane WORK...: what no other lane has taken, one after the other.
build_lane() {
    for made in "$@"; do
        mkdir "$out/taken/$(basename "$made")" 2>/dev/null || continue
        case $made in
        build_*) ($made) & ;;
        tests/*) (build_test "$made") & ;;
        *.c) (compile "build/$(basename "$made" .c)" "$made") & ;;
        *) (build_part "$made") & ;;
        esac
        wait $! || exit 1 # || after the work itself would let it go on after errors
    done
}

processors() { nproc 2>/dev/null || echo 1; }
