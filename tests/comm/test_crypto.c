/* The checksum, the hash and what secrets need: known answers of the standards, and the CPU's
 * instructions against plain code. */

/* "0aff..." into bytes; returns how many. */
static size_t bytes_of_hex(const char *hex, uint8_t *out) {
    size_t n = 0;
    for (; hex[0] && hex[1]; hex += 2, n++) {
        unsigned value = 0;
        if (sscanf(hex, "%2x", &value) != 1)
            return 0;
        out[n] = (uint8_t)value;
    }
    return n;
}

static bool bytes_are(const uint8_t *bytes, const char *hex) {
    uint8_t want[256];
    return !memcmp(bytes, want, bytes_of_hex(hex, want));
}

static uint32_t crypto_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void crypto_fill(uint8_t *to, size_t bytes, uint64_t *state) {
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)crypto_random(state);
}

/* ---- CRC32C */

/* By the definition, a bit at a time. */
static uint32_t crc_slow(uint32_t crc, const uint8_t *at, size_t bytes) {
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
    }
    return ~crc;
}

TEST(crc32c_has_the_values_of_rfc_3720) {
    uint8_t data[48] = {0};
    static const char read10[] = "01c0000000000000000000000000000014000000000004000000001400000018"
                                 "28000000000000000200000000000000";
    CHECK(dti_crc32c(0, "123456789", 9) == 0xE3069283);
    CHECK(dti_crc32c(0, NULL, 0) == 0);
    CHECK(dti_crc32c(0, data, 32) == 0x8A9136AA);
    memset(data, 0xFF, 32);
    CHECK(dti_crc32c(0, data, 32) == 0x62A8AB43);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)i;
    CHECK(dti_crc32c(0, data, 32) == 0x46DD794E);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)(31 - i);
    CHECK(dti_crc32c(0, data, 32) == 0x113FDB5C);
    CHECK(bytes_of_hex(read10, data) == 48);
    CHECK(dti_crc32c(0, data, 48) == 0xD9963A56);
}

TEST(crc32c_equals_the_bytewise_one_at_any_length_and_alignment) {
    static uint8_t data[40000];
    uint64_t state = 1;
    crypto_fill(data, sizeof data, &state);
    for (int i = 0; i < 600; i++) {
        size_t from = crypto_random(&state) % 65;
        size_t room = i < 560 ? 2000 : sizeof data - from;
        size_t bytes = i < 300 ? (size_t)i : crypto_random(&state) % room;
        uint32_t before = crypto_random(&state);
        uint32_t want = crc_slow(before, data + from, bytes);
        test_check(dti_crc32c(before, data + from, bytes) == want &&
                       ~dti_crc32c_portable(~before, data + from, bytes) == want,
                   __FILE__, __LINE__, "%zu bytes from %zu", bytes, from);
#if DTI_X86
        if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
            test_check(~dti_crc32c_sse(~before, data + from, bytes) == want, __FILE__, __LINE__,
                       "%zu bytes from %zu by the instruction", bytes, from);
#endif
    }
}

TEST(crc32c_continues_from_any_cut) {
    uint8_t data[300];
    uint64_t state = 2;
    crypto_fill(data, sizeof data, &state);
    uint32_t whole = dti_crc32c(0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++)
        CHECK(dti_crc32c(dti_crc32c(0, data, cut), data + cut, sizeof data - cut) == whole);
}

/* ---- SHA-256 */

static void sha256_of(const void *data, size_t bytes, uint8_t digest[32]) {
    dti_sha256 s;
    dti_sha256_init(&s);
    dti_sha256_add(&s, data, bytes);
    dti_sha256_end(&s, digest);
}

TEST(sha256_has_the_values_of_fips_180) {
    uint8_t digest[32], a[119];
    sha256_of("", 0, digest);
    CHECK(bytes_are(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    sha256_of("abc", 3, digest);
    CHECK(bytes_are(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, digest);
    CHECK(bytes_are(digest, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
    sha256_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
              "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
              112, digest);
    CHECK(bytes_are(digest, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"));
    static const struct {
        size_t bytes;
        const char *digest;
    } of_a[] = {{1, "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"},
                {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
                {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
                {57, "f13b2d724659eb3bf47f2dd6af1accc87b81f09f59f2b75e5c0bed6589dfe8c6"},
                {63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
                {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
                {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
                {119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"}};
    memset(a, 'a', sizeof a);
    for (size_t i = 0; i < DTI_COUNT(of_a); i++) {
        sha256_of(a, of_a[i].bytes, digest);
        test_check(bytes_are(digest, of_a[i].digest), __FILE__, __LINE__, "%zu times a",
                   of_a[i].bytes);
    }
}

TEST(sha256_of_a_million_letters_in_pieces_is_that_of_fips_180) {
    static char a[1000];
    uint8_t digest[32];
    dti_sha256 s;
    memset(a, 'a', sizeof a);
    dti_sha256_init(&s);
    for (size_t i = 0; i < 1000; i++) {
        dti_sha256_add(&s, a, i);
        dti_sha256_add(&s, a, 0);
        dti_sha256_add(&s, a, 1000 - i);
    }
    dti_sha256_end(&s, digest);
    CHECK(bytes_are(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
}

TEST(sha256_by_instructions_is_sha256_in_plain_c) {
    static uint8_t data[64 * 20 + 16];
    uint64_t state = 3;
    for (int i = 0; i < 500; i++) {
        uint32_t a[8], b[8];
        size_t from = crypto_random(&state) % 16, blocks = crypto_random(&state) % 21;
        crypto_fill(data, sizeof data, &state);
        crypto_fill((uint8_t *)a, sizeof a, &state);
        memcpy(b, a, sizeof b);
        dti_sha256_blocks(a, data + from, blocks);
        dti_sha256_portable(b, data + from, blocks);
        CHECK(!memcmp(a, b, sizeof a));
    }
}

TEST(sha256_of_pieces_is_that_of_the_whole) {
    uint8_t data[1000], whole[32], pieces[32];
    uint64_t state = 4;
    crypto_fill(data, sizeof data, &state);
    for (int i = 0; i < 300; i++) {
        size_t bytes = crypto_random(&state) % (sizeof data + 1), at = 0;
        dti_sha256 s;
        sha256_of(data, bytes, whole);
        dti_sha256_init(&s);
        while (at < bytes) {
            size_t take = crypto_random(&state) % 150;
            take = DTI_MIN(take, bytes - at);
            dti_sha256_add(&s, data + at, take);
            at += take;
        }
        dti_sha256_end(&s, pieces);
        CHECK(!memcmp(whole, pieces, 32));
    }
}

/* ---- HMAC and HKDF */

typedef struct hmac_case {
    const char *key, *data, *tag; /* in hex */
} hmac_case;

TEST(hmac_has_the_values_of_rfc_4231) {
    static const hmac_case cases[] = {
        {"0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "4869205468657265",
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"4a656665", "7768617420646f2079612077616e7420666f72206e6f7468696e673f",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
         "dddddddddddddddddddddddddddddddddddd",
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {"0102030405060708090a0b0c0d0e0f10111213141516171819",
         "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"
         "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
         "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
        {"0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c", "546573742057697468205472756e636174696f6e",
         "a3b6167473100ee06e0c796c2955552b"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaa",
         "54657374205573696e67204c6172676572205468616e20426c6f636b2d53697a"
         "65204b6579202d2048617368204b6579204669727374",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaa",
         "5468697320697320612074657374207573696e672061206c6172676572207468"
         "616e20626c6f636b2d73697a65206b657920616e642061206c61726765722074"
         "68616e20626c6f636b2d73697a6520646174612e20546865206b6579206e6565"
         "647320746f20626520686173686564206265666f7265206265696e6720757365"
         "642062792074686520484d414320616c676f726974686d2e",
         "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"}};
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        uint8_t secret[256], data[256], tag[32];
        size_t secret_bytes = bytes_of_hex(cases[i].key, secret);
        size_t bytes = bytes_of_hex(cases[i].data, data);
        dti_hmac_key key;
        dti_hmac_prepare(&key, secret, secret_bytes);
        dti_hmac(&key, data, bytes, tag);
        test_check(bytes_are(tag, cases[i].tag), __FILE__, __LINE__, "case %zu", i + 1);
    }
}

/* RFC 2104 as it is written. */
static void hmac_slow(const uint8_t *secret, size_t bytes, const uint8_t *data, size_t data_bytes,
                      uint8_t tag[32]) {
    uint8_t pad[64] = {0};
    dti_sha256 s;
    memcpy(pad, secret, bytes);
    for (int round = 0; round < 2; round++) {
        uint8_t block[64];
        for (int i = 0; i < 64; i++)
            block[i] = (uint8_t)(pad[i] ^ (round ? 0x5C : 0x36));
        dti_sha256_init(&s);
        dti_sha256_add(&s, block, 64);
        dti_sha256_add(&s, round ? tag : data, round ? 32 : data_bytes);
        dti_sha256_end(&s, tag);
    }
}

TEST(hmac_of_any_length_and_in_pieces_follows_rfc_2104) {
    uint8_t secret[64], data[200], want[32], tag[32];
    uint64_t state = 5;
    for (size_t bytes = 0; bytes <= sizeof data; bytes++) {
        dti_hmac_key key;
        dti_sha256 s;
        size_t secret_bytes = crypto_random(&state) % 65, cut = crypto_random(&state) % (bytes + 1);
        crypto_fill(secret, sizeof secret, &state);
        crypto_fill(data, sizeof data, &state);
        hmac_slow(secret, secret_bytes, data, bytes, want);
        dti_hmac_prepare(&key, secret, secret_bytes);
        dti_hmac(&key, data, bytes, tag);
        CHECK(!memcmp(tag, want, 32));
        dti_hmac_begin(&s, &key);
        dti_sha256_add(&s, data, cut);
        dti_sha256_add(&s, data + cut, bytes - cut);
        dti_hmac_end(&s, &key, tag);
        CHECK(!memcmp(tag, want, 32));
    }
}

typedef struct hkdf_case {
    const char *secret, *salt, *info, *out; /* in hex */
} hkdf_case;

TEST(hkdf_has_the_values_of_rfc_5869) {
    static const hkdf_case cases[] = {
        {"0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "000102030405060708090a0b0c",
         "f0f1f2f3f4f5f6f7f8f9",
         "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
         "34007208d5b887185865"},
        {"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
         "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
         "404142434445464748494a4b4c4d4e4f",
         "606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f"
         "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f"
         "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf",
         "b0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecf"
         "d0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeef"
         "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
         "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
         "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
         "cc30c58179ec3e87c14c01d5c1f3434f1d87"},
        {"0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "", "",
         "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
         "9d201395faa4b61a96c8"}};
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        uint8_t secret[96], salt[96], info[96], out[96];
        size_t bytes = strlen(cases[i].out) / 2;
        memset(out, 0xA5, sizeof out);
        dti_hkdf(secret, bytes_of_hex(cases[i].secret, secret), salt,
                 bytes_of_hex(cases[i].salt, salt), info, bytes_of_hex(cases[i].info, info), out,
                 bytes);
        test_check(bytes_are(out, cases[i].out) && out[bytes] == 0xA5, __FILE__, __LINE__,
                   "case %zu", i + 1);
    }
}

/* ---- the small ones */

TEST(secrets_are_equal_only_if_every_bit_is) {
    uint8_t a[32], b[32];
    uint64_t state = 6;
    crypto_fill(a, sizeof a, &state);
    memcpy(b, a, sizeof b);
    CHECK(dti_equal_secret(a, b, 32) && dti_equal_secret(a, b, 0));
    for (int bit = 0; bit < 256; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(!dti_equal_secret(a, b, 32));
        b[bit / 8] = a[bit / 8];
    }
}

TEST(wiping_writes_zeros_only_in_its_range) {
    uint8_t a[34];
    memset(a, 7, sizeof a);
    dti_wipe(a + 1, 32);
    dti_wipe(a, 0);
    CHECK(a[0] == 7 && a[33] == 7);
    for (int i = 1; i < 33; i++)
        CHECK(a[i] == 0);
}

/* A byte that never changes in 32 draws is one that was not written, but once in 2^248. */
static void check_random(bool (*draw)(void *to, size_t bytes)) {
    uint8_t bits[300] = {0}, first[300], next[301];
    CHECK(draw(first, sizeof first));
    for (int i = 0; i < 32; i++) {
        next[300] = 0xA5;
        CHECK(draw(next, 300) && next[300] == 0xA5);
        for (int k = 0; k < 300; k++)
            bits[k] = (uint8_t)(bits[k] | (next[k] ^ first[k]));
    }
    for (int k = 0; k < 300; k++)
        CHECK(bits[k] != 0);
    CHECK(draw(NULL, 0) || draw == dti_random_device);
}

TEST(random_bytes_fill_the_buffer_with_new_values_each_time) {
    check_random(dti_random_bytes);
    check_random(dti_random_device);
}
