#!/bin/sh
# Tests of training by whole programs: the examples with several devices and under launchers, against
# one process. build.sh calls it; names that contain one of the arguments are run, or all. The last
# line is three numbers: passed, failed, skipped.
set -u
cd "$(dirname "$0")/../.."
work=build/test_train
mkdir -p $work
filters=$*

. tests/scripts/wanted.sh

# state NAME WORDS...: runs a program; the hash that it prints last is left in $work/NAME.
state() {
    name=$1
    shift
    timeout 120 "$@" >$work/$name.out 2>$work/$name.err
    sed -n 's/^.*state //p' $work/$name.out >$work/$name
    [ -s $work/$name ]
}

one_and_eight_replicas_print_one_hash() {
    state one build/data_parallel cpu || return 1
    state threads build/data_parallel cpu:3 && cmp -s $work/one $work/threads || return 1
    state processes build/dtrun -n 4 build/data_parallel cpu &&
        cmp -s $work/one $work/processes || return 1
    state both build/dtrun -n 4 build/data_parallel cpu:2 && cmp -s $work/one $work/both
}

mpirun_trains_the_same_job() {
    state one build/data_parallel cpu || return 1
    state mpirun mpirun --allow-run-as-root --oversubscribe -n 4 build/data_parallel cpu &&
        cmp -s $work/one $work/mpirun
}

# curve NAME WORDS...: trains on Fashion-MNIST; what does not depend on the clock is left in NAME.
curve() {
    name=$1
    shift
    timeout 200 "$@" --data build/data --batch-slices 4 --threads 1 --epochs 2 --limit 12010 \
        --json $work/$name.json --save $work/$name.safetensors >$work/$name.out \
        2>$work/$name.err || return 1
    sed 's/"samples_per_second.*//' $work/$name.json >$work/$name.curve
}

the_loss_curve_of_4_ranks_is_that_of_one_on_fashion_mnist() {
    curve alone build/fashion_mnist --devices cpu || return 1
    curve ranks build/dtrun -n 4 build/fashion_mnist --devices cpu || return 1
    curve mixed build/dtrun -n 2 build/fashion_mnist --devices cpu:2 || return 1
    cmp -s $work/alone.safetensors $work/ranks.safetensors &&
        cmp -s $work/alone.safetensors $work/mixed.safetensors &&
        cmp -s $work/alone.curve $work/ranks.curve
}

# On the system's own driver, which drew the pictures of record: others differ by rounding.
neural_texture_draws_the_pictures_of_record() {
    (
        unset VK_ADD_DRIVER_FILES
        timeout 120 build/neural_texture $work >$work/texture.out 2>$work/texture.err
    ) || return 1
    for n in 000 030 300; do
        near=$(python3 tests/scripts/psnr.py tests/golden/neural_texture_$n.png $work/frame_$n.png) || return 1
        echo "frame $n: $near dB of the picture of record" >>$work/texture.out
        case $near in inf) continue ;; esac
        [ "${near%.*}" -ge 40 ] || return 1
    done
}

# For a wave whose height changes, an LSTM forecasts better than the value before; the state that it
# carries goes on in the forecast, which is drawn.
lstm_series_forecasts_better_than_the_value_before() {
    awk 'BEGIN { for (i = 0; i < 400; i++) print i "," (2 + sin(i / 17)) * sin(i / 2) }' \
        >$work/series.csv
    timeout 120 build/lstm_series $work/series.csv 100 $work/series.svg >$work/series.out \
        2>$work/series.err || return 1
    awk '/^one step/ { split($0, off, "off by "); split(off[2], w, /[, ]/)
        if (w[1] > 0 && w[1] < $NF / 4) good = 1 } END { exit !good }' $work/series.out &&
        [ "$(grep -c polyline $work/series.svg)" = 2 ] && ! grep -q nan $work/series.svg
}

# A class and a number that follow from two numbers and a colour, some of which are missing; the log
# has its curve. Wrong columns and rows are refused by name.
tabular_learns_a_class_and_a_number_from_a_csv_file() {
    awk 'BEGIN { srand(4); print "id,a,b,colour,kind,price"
        for (i = 0; i < 600; i++) { a = rand(); b = rand(); c = substr("red  greenblue ", 1 + 5 * int(3 * rand()), 5)
            sub(/ +$/, "", c)
            print i "," (i % 50 ? a : "") "," b "," (i % 70 ? c : "NA") "," (a > b ? "above" : "below") \
                "," a + 2 * b + (c == "red") } }' >$work/table.csv
    set -- $work/table.csv --skip id --log $work/tabular --epochs 60
    timeout 120 build/tabular "$@" --target kind --skip id,price --save $work/tabular.safetensors \
        >$work/tabular.out 2>&1 || return 1
    grep -q '"numbers.mean".*"numbers.deviation"' $work/tabular.safetensors || return 1
    sed -n 's/.*val accuracy \([0-9.]*\).*/\1/p' $work/tabular.out |
        awk '$1 > best { best = $1 } END { exit !(best > 0.93) }' || return 1
    tools/view/dtplot $work/tabular --only 'validation/*' -o $work/tabular.svg || return 1
    timeout 120 build/tabular "$@" --target price --skip id,kind >$work/tabular.out 2>&1 || return 1
    sed -n 's/.*val loss \([0-9.e-]*\).*/\1/p' $work/tabular.out |
        awk 'NR == 1 || $1 < best { best = $1 } END { exit !(best < 0.08) }' || return 1
    echo '7,1,2' >>$work/table.csv
    for wrong in '--target none' '--target kind'; do
        # shellcheck disable=SC2086 # words are meant
        if timeout 20 build/tabular $work/table.csv $wrong >$work/tabular.out 2>&1; then return 1; fi
        grep -q '^tabular: ' $work/tabular.out || return 1
    done
    grep -q 'table.csv:602: 3 values for 6 columns' $work/tabular.out
}

# A folder of pictures; 2 epochs and 2 more are 4, to the bit; TensorBoard's files are there.
pictures_learns_a_folder_of_fashion_mnist_and_resumes() {
    rm -rf $work/pictures $work/pictures.*
    python3 tools/bench/pictures_from_idx build/data/t10k-images-idx3-ubyte build/data/t10k-labels-idx1-ubyte \
        $work/pictures 600 || return 1
    for epochs in 2 4; do
        timeout 120 build/pictures $work/pictures $work/pictures.run $epochs >$work/pictures.out 2>&1 || return 1
    done
    timeout 120 build/pictures $work/pictures $work/pictures.whole 4 >$work/pictures.out 2>&1 || return 1
    newest=$(sed 1q $work/pictures.run/LATEST)
    cmp -s "$work/pictures.run/$newest" "$work/pictures.whole/$newest" &&
        ls $work/pictures.run/events.out.tfevents.* >/dev/null &&
        [ "$(grep -c 'validation/loss' $work/pictures.run/scalars.csv)" = 4 ] || return 1
    sed -n 's/.*val accuracy \([0-9.]*\).*/\1/p' $work/pictures.out |
        awk '$1 > best { best = $1 } END { exit !(best > 0.5) }' || return 1
    head -c 200 $work/pictures/0/00019.png >$work/pictures/0/00020.png # truncated
    if timeout 120 build/pictures $work/pictures $work/pictures.cut 1 >$work/pictures.out 2>&1; then return 1; fi
    grep -q '0/00020.png: damaged or truncated' $work/pictures.out
}

# Its loss on a text falls; a saved run resumes where it was, and wrong words are refused.
char_gpt_learns_a_text_and_writes_on() {
    find docs -name "*.md" | sort | xargs cat README.md >$work/text.txt
    set -- --data $work/text.txt --layers 2 --width 64 --context 64 --length 40 --devices cpu:2
    timeout 120 build/char_gpt "$@" --batch-slices 2 --epochs 2 --steps 160 --save $work/gpt.safetensors \
        >$work/gpt.out 2>$work/gpt.err || return 1
    sed -n 's/^step.*validation \([0-9.]*\).*/\1/p' $work/gpt.out >$work/gpt.losses
    awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(first < 5.5 && last < 3.3) }' \
        $work/gpt.losses || return 1
    timeout 120 build/char_gpt "$@" --epochs 0 --load $work/gpt.safetensors --prompt 'dt_' \
        >$work/gpt.out 2>$work/gpt.err || return 1
    grep -q "^step 0: validation $(tail -n 1 $work/gpt.losses)$" $work/gpt.out &&
        grep -q '^dt_' $work/gpt.out || return 1
    for wrong in '--data /nowhere' '--width -1' '--heads 5' '--nothing 1' '--batch'; do
        # shellcheck disable=SC2086 # words are meant
        if timeout 20 build/char_gpt "$@" $wrong >$work/gpt.out 2>$work/gpt.err; then return 1; fi
        grep -q '^char_gpt: ' $work/gpt.err || return 1
    done
}

# The same losses on one device, and in stages by each schedule.
pipeline_gpt_has_the_same_losses_in_stages_as_on_one_device() {
    timeout 120 build/pipeline_gpt cpu 0 20 >$work/pipe.one 2>/dev/null || return 1
    for way in 'cpu:2 0' 'cpu:3 1' 'cpu:3 2' 'cpu:4 3'; do
        # shellcheck disable=SC2086 # words are meant
        timeout 120 build/pipeline_gpt $way 20 >$work/pipe.out 2>/dev/null &&
            cmp -s $work/pipe.one $work/pipe.out || return 1
    done
    for way in 'cpu 3' 'cpu 2' 'cpu:2 1'; do # in two processes
        # shellcheck disable=SC2086
        timeout 120 build/dtrun -n 2 build/pipeline_gpt $way 20 2>/dev/null | sed 's/^\[0\] //' >$work/pipe.out &&
            cmp -s $work/pipe.one $work/pipe.out || return 1
    done
}

# Rank 0 serves, the others compute: the hash of the ranks that sum among themselves. Then a server
# that a file names, and a worker with another key.
parameter_server_prints_the_hash_of_the_ranks() {
    state one build/data_parallel cpu || return 1
    state served build/dtrun -n 4 build/parameter_server && cmp -s $work/one $work/served || return 1
    timeout 60 build/dtrun -n 3 build/parameter_server 3 >$work/served.out 2>&1 &&
        grep -q '400 steps' $work/served.out || return 1
    for key in a b; do
        printf '%064d' 0 | tr 0 $key >$work/key.$key
        chmod 600 $work/key.$key
    done
    DTRAIN_SECRET_FILE=$work/key.a timeout 60 build/parameter_server 0 serve file://$work/at \
        >$work/served.out 2>$work/served.err &
    server=$!
    if DTRAIN_SECRET_FILE=$work/key.b timeout 60 build/parameter_server 0 work file://$work/at \
        >$work/worker.out 2>&1; then return 1; fi
    grep -q 'keys differ' $work/worker.out || return 1
    DTRAIN_SECRET_FILE=$work/key.a timeout 60 build/parameter_server 0 work file://$work/at \
        >$work/worker.out 2>&1 || return 1
    wait $server && sed -n 's/^state //p' $work/served.out | cmp -s $work/one - || return 1
}

# Of the tests' small model, whose tokens are letters here; the trained part is a file of its own.
gpt2_reads_a_published_model_learns_a_text_and_writes_on() {
    {
        printf '{"\\u0120": 0, "\304\212": 1'
        i=2
        for c in a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P Q R S T; do
            printf ', "%s": %d' $c $i
            i=$((i + 1))
        done
        printf '}'
    } >$work/vocab.json
    yes 'the cat and the dog sat on a mat' | head -n 400 >$work/letters.txt
    set -- --model tests/golden/gpt2.safetensors --vocab $work/vocab.json --heads 2 --context 16 --length 10
    timeout 120 build/gpt2 "$@" --data $work/letters.txt --steps 60 --lr 0.02 \
        --save $work/adapter.safetensors >$work/gpt2.out 2>$work/gpt2.err || return 1
    sed -n 's/^step.*loss //p' $work/gpt2.out |
        awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first - 0.3) }' || return 1
    timeout 20 build/gpt2 "$@" --load $work/adapter.safetensors --length 0 >$work/gpt2.again || return 1
    [ "$(cat $work/gpt2.again)" = 'The ' ] && grep -q '^The ' $work/gpt2.out || return 1
    n=0 # a layer that lacks a norm, a layer of another name, a table that is not there
    for change in 's/h[.]1[.]ln_1[.]weight/h.1.ln_9.weight/' 's/h[.]1[.]/q.1./g' 's/wpe[.]weight/wpx.weight/'; do
        LC_ALL=C sed "$change" tests/golden/gpt2.safetensors >$work/gpt2.wrong$n
        n=$((n + 1))
    done
    for wrong in '--model /nowhere' '--load tests/golden/gpt2.safetensors' '--heads 3' '--prompt %' \
        "--model $work/gpt2.wrong0" "--model $work/gpt2.wrong1" "--model $work/gpt2.wrong2" \
        '--nothing 1' '--rank'; do
        # shellcheck disable=SC2086 # words are meant
        if timeout 20 build/gpt2 "$@" $wrong >$work/gpt2.out 2>$work/gpt2.err; then return 1; fi
        grep -q '^gpt2: ' $work/gpt2.err || return 1
    done
}

# In a few thousand steps of a cart; its log is drawn. Replicas and ranks have the same weights.
cartpole_holds_the_pole_for_475_of_500_steps() {
    timeout 120 build/cartpole cpu $work/cartpole >$work/cartpole.out 2>$work/cartpole.err || return 1
    for way in 'build/cartpole cpu:2' 'build/dtrun -n 2 build/cartpole cpu'; do
        timeout 120 $way 2>&1 | grep -o 'weights .*' | cmp -s - $work/cartpole.err || return 1
    done
    tail -n 1 $work/cartpole.out | awk '{ exit !($(NF - 1) >= 475) }' &&
        tools/view/dtplot $work/cartpole -o $work/cartpole.svg && grep -q polyline $work/cartpole.svg
}

# The mean square falls to a third; pictures are drawn.
autoencoder_describes_pictures_by_eight_numbers() {
    timeout 120 build/autoencoder $work 4 >$work/autoencoder.out 2>$work/autoencoder.err || return 1
    sed -n 's/.*val loss \([0-9.e-]*\).*/\1/p' $work/autoencoder.out |
        awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR == 4 && last < 0.6 * first) }' &&
        [ "$(wc -c <$work/autoencoder.png)" -gt 6000 ]
}

# A network of sines knows the picture; the file has the signature of a PNG.
fit_image_draws_what_it_learnt() {
    timeout 120 build/fit_image $work 100 >$work/fit_image.out 2>$work/fit_image.err || return 1
    tail -n 1 $work/fit_image.out | awk '{ exit !($3 > 22) }' &&
        [ "$(head -c 8 $work/learnt.png | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ]
}

finetune_is_better_with_a_body_that_was_learnt() {
    timeout 120 build/finetune $work >$work/finetune.out 2>$work/finetune.err || return 1
    sed -n 's/^directions.*head \([0-9.]*\), from nothing \([0-9.]*\)$/\1 \2/p' $work/finetune.out |
        awk '{ exit !($1 > 0.8 && $1 > $2) }'
}

has_vulkan() {
    lacks='there is no build/neural_texture, which needs <vulkan/vulkan.h>'
    [ -e build/neural_texture ] || return 1
    lacks='there is no driver in /usr/share/vulkan/icd.d'
    ls /usr/share/vulkan/icd.d/*.json >/dev/null 2>&1
}

for test in one_and_eight_replicas_print_one_hash mpirun_trains_the_same_job \
    neural_texture_draws_the_pictures_of_record \
    lstm_series_forecasts_better_than_the_value_before \
    tabular_learns_a_class_and_a_number_from_a_csv_file \
    pictures_learns_a_folder_of_fashion_mnist_and_resumes char_gpt_learns_a_text_and_writes_on \
    pipeline_gpt_has_the_same_losses_in_stages_as_on_one_device \
    parameter_server_prints_the_hash_of_the_ranks \
    gpt2_reads_a_published_model_learns_a_text_and_writes_on \
    cartpole_holds_the_pole_for_475_of_500_steps autoencoder_describes_pictures_by_eight_numbers \
    fit_image_draws_what_it_learnt finetune_is_better_with_a_body_that_was_learnt \
    the_loss_curve_of_4_ranks_is_that_of_one_on_fashion_mnist; do
    wanted "train_$test" || continue
    if [ $test = mpirun_trains_the_same_job ] && ! command -v mpirun >/dev/null 2>&1; then
        skipped=$((skipped + 1))
        echo "skipped train_$test: there is no mpirun"
    elif [ "${test#neural}" != "$test" ] && ! has_vulkan; then
        skipped=$((skipped + 1))
        echo "skipped train_$test: $lacks"
    elif [ "${test#*fashion}" != "$test" ] && [ ! -e build/data/train-images-idx3-ubyte ]; then
        skipped=$((skipped + 1))
        echo "skipped train_$test: no build/data; ./build.sh train gets it"
    elif [ "${test#pictures}" != "$test" ] && ! echo '#include <png.h>' | ${CC:-cc} -E - >/dev/null 2>&1; then
        skipped=$((skipped + 1))
        echo "skipped train_$test: no libpng"
    elif $test; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED  train_$test"
        for file in $work/*.err; do tail -n 3 "$file"; done
    fi
done
echo "$passed $failed $skipped"
