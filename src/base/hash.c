/* Hashes that identify things inside one program: FNV-1a 64, for plans and caches. Also the CRC-32
 * of PNG and ZIP. They are neither fast, nor safe against intent. */

static uint64_t dti_hash64(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

/* Four bits at a time: entry n is what the shift register holds after n. */
static uint32_t dti_crc32(uint32_t crc, const void *data, size_t bytes) {
    static const uint32_t nibble[16] = {0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu,
                                        0x76DC4190u, 0x6B6B51F4u, 0x4DB26158u, 0x5005713Cu,
                                        0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu,
                                        0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu};
    const unsigned char *at = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc = crc >> 4 ^ nibble[(crc ^ at[i]) & 15];
        crc = crc >> 4 ^ nibble[(crc ^ (uint32_t)at[i] >> 4) & 15];
    }
    return ~crc;
}
