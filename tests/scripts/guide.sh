#!/bin/sh
# The programs of docs/guide, as they stand on the pages: compiled with the library's objects, and run.
# build.sh calls it; names that contain one of the arguments are run, or all. The last line is three
# numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
root=$PWD
work=$root/build/test_guide
rm -rf "$work"
mkdir -p "$work"
filters=$*
library=${library-} # its objects
readers=${reader_libs-} # what it reads files with
pictures=guide_pictures_learns_resumes_and_writes_a_log

. tests/scripts/wanted.sh

# program PAGE N LANGUAGE: the Nth block of a page that has a main is compiled to $work/PAGE.N.
program() {
    source=$work/$1.$2.$3
    awk -v n="$2" -v language="$3" '
        $0 == "```" language { open = 1; text = ""; next }
        /^```/ && open { open = 0; if (text ~ /int main\(/ && ++seen == n) printf "%s", text }
        open { text = text $0 "\n" }' "docs/guide/$1.md" >"$source"
    [ -s "$source" ] || { echo "  docs/guide/$1.md has no program $2" && return 1; }
    case $3 in
    c) ${CC:-cc} -O2 -Wall -DDTI_IMPLEMENTED -Ibuild/include -I. "$source" $library -o "$work/$1.$2" -lm -ldl -lpthread $readers ;;
    cpp) ${CXX:-c++} -std=c++20 -O2 -Wall -Ibuild/include -I. "$source" $library -o "$work/$1.$2" -lm -ldl -lpthread $readers ;;
    esac >"$work/$1.$2.err" 2>&1 || { cat "$work/$1.$2.err" && return 1; }
}

# runs PAGE N [WORDS]: in the folder of all of them.
runs() {
    name=$1.$2
    shift 2
    (cd "$work" && timeout 120 "./$name" "$@" >"$name.out" 2>"$name.err") || {
        tail -n 5 "$work/$name.out" "$work/$name.err"
        return 1
    }
}

guide_first_hour_learns_rings_and_loads_them_again() {
    program first-hour 1 c && program first-hour 2 c && runs first-hour 1 && runs first-hour 2
}

# Disks, rings and bars of any size and place, as PNG files: 360 to learn from, 60 to validate with.
draw_pictures() {
    python3 - "$work" <<'END'
import os, random, struct, sys, zlib
random.seed(3)
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
inside = {"disk": lambda u, v, r: u * u + v * v < r * r, "ring": lambda u, v, r: r * r < 2.5 * (u * u + v * v) < 2.5 * r * r,
          "bar": lambda u, v, r: abs(u) < 0.25 * r and abs(v) < 1.4 * r}
for part, count in (("train", 360), ("valid", 60)):
    for name, shape in inside.items():
        os.makedirs(f"{sys.argv[1]}/{part}/{name}")
        for i in range(count // 3):
            w, h, r = random.randint(32, 48), random.randint(32, 48), random.uniform(7, 11)
            x, y = random.uniform(r, w - r), random.uniform(r, h - r)
            paint = [bytes(random.randint(128 * k, 127 + 128 * k) for _ in range(3)) for k in range(2)]
            rows = b"".join(b"\0" + b"".join(paint[shape(u - x, v - y, r)] for u in range(w)) for v in range(h))
            with open(f"{sys.argv[1]}/{part}/{name}/{i:02}.png", "wb") as f:
                f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0))
                        + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
END
}

# Killed after its first checkpoint it goes on from there, with the classes of all pictures learnt.
guide_pictures_learns_resumes_and_writes_a_log() {
    draw_pictures && program pictures 1 c || return 1
    (cd "$work" && exec ./pictures.1 >pictures.first 2>&1) &
    for _ in $(seq 400); do
        if [ -e "$work/run/LATEST" ]; then break; fi
        sleep 0.05
    done
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    runs pictures 1 || return 1
    ! grep -q 'epoch 1/' "$work/pictures.1.out" && [ -s "$work/pets.safetensors" ] &&
        ls "$work"/run/events.out.tfevents.* >/dev/null || return 1
    sed -n 's/.*,validation\/accuracy,//p' "$work/run/scalars.csv" |
        awk '$1 > best { best = $1 } END { exit !(best > 0.85) }'
}

guide_from_keras_learns() {
    program from-keras 1 c && runs from-keras 1
}

guide_frame_loop_learns_between_frames() {
    program frame-loop 1 c && runs frame-loop 1
}

guide_nouns_each_have_a_program() {
    for n in 1 2 3 4 5 6; do
        program nouns $n c && runs nouns $n || return 1
    done
    grep -q '^y = 3.00 x + 1.00$' "$work/nouns.5.out" &&
        [ "$(build/dtrun -n 2 "$work/nouns.6" | grep -c 'there are 2 of us')" = 2 ]
}

guide_several_devices_have_one_hash() {
    program several-devices 1 c && runs several-devices 1 cpu || return 1
    cp "$work/several-devices.1.out" "$work/one.out"
    grep -q '^weights ' "$work/one.out" || return 1
    for stage in 0 1 2 3; do
        runs several-devices 1 cpu:4 $stage && cmp -s "$work/one.out" "$work/several-devices.1.out" || return 1
    done
}

# hashes RANKS DEVICES EPOCHS: the weights of each rank, in a folder that may have a checkpoint.
hashes() {
    (cd "$work/job" && timeout 120 "$root/build/dtrun" -n "$1" ../eight-hosts.1 "$2" "$3" | sed 's/.*weights //')
}

guide_eight_hosts_have_one_hash_and_resume() {
    program eight-hosts 1 c || return 1
    for job in '1 cpu' '1 cpu:2' '2 cpu' '2 cpu:4'; do
        rm -rf "$work/job" && mkdir "$work/job"
        # shellcheck disable=SC2086 # two words
        hashes $job 3
    done | sort -u >"$work/one.out"
    hashes 1 cpu:2 5 >"$work/resumed.out"
    rm -rf "$work/job" && mkdir "$work/job"
    [ "$(wc -l <"$work/one.out")" = 1 ] && hashes 1 cpu 5 | cmp -s - "$work/resumed.out" &&
        ! cmp -s "$work/one.out" "$work/resumed.out"
}

# rank N OF PORT [NAME=VALUE...] PROGRAM: one process of a job on this host. It waits 3 s for the others.
rank() {
    number=$1 of=$2 port_of_job=$3
    shift 3
    (cd "$work/troubles" && timeout 60 env DTRAIN_TIMEOUT=3 MASTER_ADDR=127.0.0.1 RANK="$number" WORLD_SIZE="$of" \
        MASTER_PORT="$port_of_job" "$@" 2>&1)
}

# The mistakes of ranks that docs/guide/troubles.md lists.
ranks_that_do_not_meet() {
    port=$((20000 + $$ % 9000)) job=../eight-hosts.1
    for key in key1 key2 key; do
        head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$work/troubles/$key" && chmod 600 "$work/troubles/$key"
    done
    chmod 644 "$work/troubles/key"
    sed 's/\.batch = 64/.batch = 32/' "$work/eight-hosts.1.c" >"$work/eight-hosts-32.c"
    ${CC:-cc} -O2 -w -DDTI_IMPLEMENTED -Ibuild/include "$work/eight-hosts-32.c" $library -o "$work/eight-hosts-32" \
        -lm -ldl -lpthread $readers
    (cd "$work/troubles" && env WORLD_SIZE=2 RANK=0 $job 2>&1)
    rank 1 2 $((port + 1)) $job
    rank 1 2 $((port + 1)) DTRAIN_SECRET_FILE=key1 $job
    rank 0 2 $((port + 1)) DTRAIN_SECRET_FILE=key $job
    rank 1 2 $((port + 1)) MASTER_ADDR=192.0.2.1 $job
    rank 1 2 $((port + 1)) MASTER_ADDR=hosta.invalid DTRAIN_SECRET_FILE=key1 $job
    rank 0 2 $((port + 2)) DTRAIN_SECRET_FILE=key1 $job & rank 1 2 $((port + 2)) DTRAIN_SECRET_FILE=key2 $job
    rank 0 2 $((port + 2)) $job
    wait
    rank 0 3 $((port + 3)) $job & rank 1 3 $((port + 3)) $job & rank 1 3 $((port + 3)) $job
    wait
    rank 0 2 $((port + 4)) DTRAIN_TIMEOUT=60 ../eight-hosts-32 & rank 1 2 $((port + 4)) DTRAIN_TIMEOUT=60 $job
    wait
    rank 0 2 $((port + 5)) DTRAIN_TIMEOUT=60 $job cpu 1000000 &
    (cd "$work/troubles" && MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 5)) RANK=1 WORLD_SIZE=2 exec $job cpu 1000000) &
    for _ in $(seq 400); do
        if [ -e "$work/troubles/run/LATEST" ]; then break; fi
        sleep 0.05
    done
    kill -9 $!
    wait
}

guide_troubles_has_the_texts_of_the_library() {
    program eight-hosts 1 c || return 1
    rm -rf "$work/troubles" && mkdir "$work/troubles"
    ${CC:-cc} -O2 -w -DDTI_IMPLEMENTED -Ibuild/include tests/scripts/troubles.c $library -o "$work/troubles.bin" \
        -lm -ldl -lpthread $readers || return 1
    { (cd "$work/troubles" && timeout 60 ../troubles.bin) && ranks_that_do_not_meet; } >"$work/troubles.out" 2>&1
    python3 - docs/guide/troubles.md "$work/troubles.out" docs/guide/eight-hosts.md src/comm/protocol/*.c <<'END'
import re, sys
def plain(text):
    return re.sub(r"\s+", " ", re.sub(r"[\d.]*\d", "N", text))
page, said, hosts, *sources = (open(name, encoding="utf-8").read() for name in sys.argv[1:])
said, lost = plain(said), []
# A lost rank's text has reasons that no run has at will: they are the sources'.
known = said + plain(re.sub(r"%[.\d]*[a-z]+", "0", re.sub(r'"\s*"', "", "".join(sources))))
parts = [p for text in re.findall(r"(?ms)^rank \d: (.*?)$(?=\n(?:```|rank))", hosts)
         for p in re.split(r"; | is lost: ", text) if not re.fullmatch(r"rank \d \([\d.:]*\)", p)]
lost += ["eight-hosts.md has a text that the library does not print: " + p for p in parts if plain(p) not in known]
page, *blocks = re.split(r"(?m)^(```.*)", page)
page += "".join(blocks[3::4]) # what is between two fences is code, and each second text
quotes = [q for q in re.findall(r"`([^`]*)`", page) if len(q.split()) > 4 and q[-1] not in "})"]
quotes += [text for fence, text in zip(blocks[::4], blocks[1::4]) if fence == "```"]
for part in (p.strip() for q in quotes for p in q.split("...")):
    if plain(part) not in said:
        lost.append("troubles.md has a text that the library does not print: " + part)
print(*(f"{text}\n" for text in lost), sep="", end="")
sys.exit(bool(lost) or len(quotes) < 30 or len(parts) < 10)
END
}

guide_check_up_looks_at_a_model() {
    program check-up 1 c && runs check-up 1 && grep -q 'by heart' "$work/check-up.1.out" &&
        [ -s "$work/trace.json" ]
}

guide_reinforcement_finds_the_better_end() {
    program reinforcement 1 c && runs reinforcement 1
}

guide_gpt_learns_the_table_of_seven_and_a_cache_changes_no_score() {
    program gpt 1 c && program gpt 2 c && runs gpt 1 && runs gpt 2
}

guide_standardised_inputs_travel_with_the_weights() {
    program inputs 1 c && program inputs 2 c && runs inputs 1 && runs inputs 2
}

guide_rates_by_a_schedule_learn_better() {
    program rates 1 c && runs rates 1
}

guide_mixed_precision_learns_as_f32_does() {
    program mixed-precision 1 c && runs mixed-precision 1
}

guide_vae_draws_from_codes() {
    program vae 1 c && runs vae 1 && [ -s "$work/vae.png" ]
}

guide_gan_makes_a_circle_on_any_devices() {
    program gan 1 c && runs gan 1 cpu || return 1
    sed -n '/^weights/p' "$work/gan.1.out" >"$work/one.out"
    build/dtrun -n 2 "$work/gan.1" cpu:2 >"$work/ranks.out" 2>"$work/ranks.err" &&
        sed -n 's/^\[0\] weights/weights/p' "$work/ranks.out" | cmp -s - "$work/one.out"
}

guide_from_cpp_learns_a_line() {
    program cpp 1 cpp && runs cpp 1
}

case $readers in
*-lpng*) ;;
*)
    if wanted $pictures; then
        echo "skipped $pictures: no libpng (in Debian: libpng-dev)"
        skipped=$((skipped + 1))
    fi
    pictures=
    ;;
esac

# shellcheck disable=SC2086 # it is one word, or none
for test in guide_first_hour_learns_rings_and_loads_them_again $pictures guide_from_keras_learns \
    guide_frame_loop_learns_between_frames guide_nouns_each_have_a_program \
    guide_several_devices_have_one_hash guide_eight_hosts_have_one_hash_and_resume guide_check_up_looks_at_a_model \
    guide_troubles_has_the_texts_of_the_library \
    guide_reinforcement_finds_the_better_end \
    guide_gpt_learns_the_table_of_seven_and_a_cache_changes_no_score \
    guide_standardised_inputs_travel_with_the_weights guide_rates_by_a_schedule_learn_better \
    guide_mixed_precision_learns_as_f32_does guide_vae_draws_from_codes \
    guide_gan_makes_a_circle_on_any_devices guide_from_cpp_learns_a_line; do
    wanted $test || continue
    if $test; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  $test"
    fi
done
echo "$passed $failed $skipped"
