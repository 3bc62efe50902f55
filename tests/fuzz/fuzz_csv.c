/* Any bytes as a CSV file: each row read as numbers twice, the same, or refused with a text and
 * without leaks. The first byte says how it is read. */
#include "fuzz/fuzz.h"

static void fuzz_csv_rows(dt_csv *csv) {
    static float rows[2][4096];
    dt_csv_info info;
    int columns[64], count = 0;
    dt_csv_get_info(csv, &info);
    FUZZ_CHECK(info.rows > 0);
    for (int i = 0; i < info.columns && count < 64; i++) {
        dt_csv_column column;
        FUZZ_CHECK(dt_csv_get_column(csv, i, &column) == DT_OK);
        FUZZ_CHECK(column.kind != DT_CSV_GUESS && dt_csv_find(csv, column.name) == i);
        if (column.kind != DT_CSV_SKIP)
            columns[count++] = i;
        for (int k = 1; k < column.categories; k++)
            FUZZ_CHECK(strcmp(column.category[k - 1], column.category[k]) < 0);
    }
    const uint64_t rows_most = count ? 4096u / (unsigned)count : 0;
    const uint64_t n = info.rows < rows_most ? info.rows : rows_most;
    if (!count || !n)
        return;
    const dt_result result = dt_csv_read(csv, columns, count, info.rows - n, n, DT_F32, rows[0]);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_INVALID); /* a number that no float holds */
    for (uint64_t i = n; i-- > 0 && !result;)
        FUZZ_CHECK(dt_csv_read(csv, columns, count, info.rows - n + i, 1, DT_F32,
                               rows[1] + i * (unsigned)count) == DT_OK);
    FUZZ_CHECK(result || !memcmp(rows[0], rows[1], n * (unsigned)count * sizeof(float)));
}

static dt_result fuzz_csv(const uint8_t *data, size_t size) {
    static fuzz_file file;
    static dt_ctx *ctx; /* until the process ends */
    const uint8_t how = size ? data[0] : 0;
    dt_csv *csv, *again;
    dt_csv_desc desc = {.delimiter = how & 1 ? ';' : ','};
    desc.no_header = how & 2;
    desc.skip_bad = how & 4;
    desc.max_categories = how & 8 ? 2 : 0;
    desc.rules[0] = (dt_csv_rule){.columns = "*", .missing = (dt_csv_missing)(how >> 4 & 7) % 4};
    desc.rules[0].standardize = how & 128;
    if (!ctx)
        ctx = fuzz_context();
    if (!ctx || !fuzz_write(&file, data + (size > 0), size - (size > 0)))
        return DT_ERROR_IO;
    const uint64_t before = fuzz_bytes(ctx);
    dt_result result = dt_csv_open(ctx, file.path, &desc, &csv);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT || result == DT_ERROR_INVALID);
    if (result) {
        FUZZ_CHECK(!csv && dt_ctx_error(ctx)[0]);
    } else {
        fuzz_csv_rows(csv);
        desc.like = csv; /* what a file is, fits it */
        FUZZ_CHECK(dt_csv_open(ctx, file.path, &desc, &again) == DT_OK);
        fuzz_csv_rows(again);
        dt_csv_close(again);
    }
    dt_csv_close(csv);
    FUZZ_CHECK(fuzz_bytes(ctx) == before);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_csv(data, size);
    return 0;
}
#endif
