# ./build.sh install [--prefix DIR]
#                            dtrain.h, dtrain.pc for pkg-config, and dtrun (/usr/local; DESTDIR too)

main() {
    prefix=/usr/local
    case ${1:-} in
    --prefix) prefix=${2:-} ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    '') ;;
    *) die "install takes --prefix DIR, not '$1'" ;;
    esac
    case $prefix in /*) ;; *) die "--prefix takes an absolute folder, not '$prefix'" ;; esac
    needs compiler
    fresh_flags
    install_to "${prefix%/}"
}

# install_to PREFIX: DESTDIR stands before it, as packagers have it.
install_to() {
    root=${DESTDIR-}$1
    header
    compile build/dtrun tools/dtrun.c
    mkdir -p "$root/include" "$root/lib/pkgconfig" "$root/bin"
    cp $dtrain_h "$root/include/dtrain.h"
    cp build/dtrun "$root/bin/dtrun"
    version=$(sed -n 's/^#define DT_VERSION "\(.*\)"$/\1/p' src/api/config.h)
    cat >"$root/lib/pkgconfig/dtrain.pc" <<END
prefix=$1
Name: dtrain
Description: Neural networks that train anywhere, in one C header
Version: $version
Cflags: -I\${prefix}/include
Libs: $LIBS
END
    say "installed dtrain.h, dtrain.pc and dtrun below $root"
}
