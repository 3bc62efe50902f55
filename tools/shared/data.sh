# Part of build.sh: what examples train on.
#
# Fashion-MNIST: Debian's package, else the original files. Both hold the same IDX files, in
# differently packed gzip files, so the unpacked ones are what is checked.

data_sums='c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888  train-images-idx3-ubyte
bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9  train-labels-idx1-ubyte
5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b  t10k-images-idx3-ubyte
0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34  t10k-labels-idx1-ubyte'
data_package=/usr/share/datasets/fashion-mnist data_note=
data_url=http://fashion-mnist.s3-website.eu-central-1.amazonaws.com

sha256() {
    if have sha256sum; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

has_data() {
    for name in $(printf '%s\n' "$data_sums" | sed 's/.* //'); do
        [ -e "build/data/$name" ] || packaged dataset-fashion-mnist $data_package || return 1
    done
}

# fetch NAME: leaves build/data/NAME.tmp, unpacked.
fetch() {
    if [ -e "$data_package/$1.gz" ]; then
        gzip -dc "$data_package/$1.gz" >"build/data/$1.tmp"
        return
    fi
    have curl || die 'curl is missing: install it, or put the four IDX files into build/data'
    say "downloading $1.gz"
    curl -fsSL --retry 3 "$data_url/$1.gz" -o "build/data/$1.gz" ||
        die "$data_url/$1.gz cannot be fetched: install Debian's package dataset-fashion-mnist" \
            '(--yes does so), or put the unpacked IDX files into build/data'
    gzip -dc "build/data/$1.gz" >"build/data/$1.tmp"
    rm -f "build/data/$1.gz"
}

data() {
    mkdir -p build/data
    printf '%s\n' "$data_sums" | while read -r sum name; do
        if [ -e "build/data/$name" ]; then continue; fi
        have gzip || die "gzip is missing: install it"
        fetch "$name" </dev/null
        [ "$(sha256 "build/data/$name.tmp")" = "$sum" ] ||
            die "build/data/$name.tmp is not the file it should be (SHA-256 $sum)"
        mv "build/data/$name.tmp" "build/data/$name"
    done
}

# needs_data THING...: those and the data: Debian's package, or by curl where that is.
needs_data() {
    if have curl; then
        data_note=', which is downloaded otherwise'
        needs "$@" - data
    else
        data_note=' (or curl, which downloads it)'
        needs "$@" data
    fi
    data
}

# A text of 1.7 MB, from Debian's package, which need not be installed.
text_sum=40dfb4b98191a670a09a183d5798d50f243d23fdbd1495dcc0aca2ce5895ba97

download_text() {
    (cd build/data/jargon && apt-get -q download jargon-text >&2 && dpkg-deb -x jargon-text_*.deb .)
}

text_data() {
    if [ -e build/data/jargon.txt ]; then return 0; fi
    if ! have apt-get || ! have dpkg-deb; then
        die "the text is in Debian's package jargon-text; any other will do: --data FILE"
    fi
    rm -rf build/data/jargon
    mkdir -p build/data/jargon
    download_text || {
        [ $may_install = yes ] && by_whom && update_lists && download_text
    } || die "jargon-text cannot be downloaded (after apt-get update, or with --yes?);" \
        "any other text will do: --data FILE"
    gzip -dc build/data/jargon/usr/share/doc/jargon-text/jargon.txt.gz >build/data/jargon.txt.tmp
    rm -rf build/data/jargon
    [ "$(sha256 build/data/jargon.txt.tmp)" = "$text_sum" ] ||
        die "build/data/jargon.txt.tmp is not the text it should be (SHA-256 $text_sum)"
    mv build/data/jargon.txt.tmp build/data/jargon.txt
}
