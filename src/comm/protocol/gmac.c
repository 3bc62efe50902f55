/* The keyed checksum of payloads with integrity MAC: GMAC (NIST SP 800-38D), AES-256-GCM that
 * encrypts nothing, by OpenSSL. The nonce is 4 zeros and the frame's number in its direction (8
 * bytes), so no nonce repeats under a key. A seal without OpenSSL has none, and comm.c refuses the
 * mode there. After dti_gmac_open nothing is allocated. */

#ifdef DT_WITH_OPENSSL
#include <openssl/evp.h>

static void dti_gmac_close(dti_seal *seal) {
    EVP_CIPHER_CTX_free(seal->gmac);
    seal->gmac = NULL;
}

/* False: OpenSSL has no memory, or no AES-256-GCM. */
static bool dti_gmac_open(dti_seal *seal, const uint8_t key[32]) {
    EVP_CIPHER_CTX *gmac = EVP_CIPHER_CTX_new();
    seal->gmac = gmac;
    if (gmac && EVP_EncryptInit_ex(gmac, EVP_aes_256_gcm(), NULL, key, NULL) == 1)
        return true;
    dti_gmac_close(seal);
    return false;
}

/* GMAC of the frame with this number: begin, add the body in parts, end. */
static bool dti_gmac_begin(dti_seal *seal, uint64_t frame) {
    uint8_t nonce[12] = {0};
    dti_put64(nonce + 4, frame);
    return EVP_EncryptInit_ex(seal->gmac, NULL, NULL, NULL, nonce) == 1;
}

static bool dti_gmac_add(dti_seal *seal, const void *data, size_t bytes) {
    int none;
    return EVP_EncryptUpdate(seal->gmac, NULL, &none, data, (int)bytes) == 1;
}

static bool dti_gmac_end(dti_seal *seal, uint8_t mac[DTI_MAC_BYTES]) {
    uint8_t rest[16];
    int none;
    return EVP_EncryptFinal_ex(seal->gmac, rest, &none) == 1 &&
           EVP_CIPHER_CTX_ctrl(seal->gmac, EVP_CTRL_GCM_GET_TAG, DTI_MAC_BYTES, mac) == 1;
}

#else

DTI_ABSENT(void, dti_gmac_close, (dti_seal * seal), );
DTI_ABSENT(bool, dti_gmac_open, (dti_seal * seal, const uint8_t key[32]), false);
DTI_ABSENT(bool, dti_gmac_begin, (dti_seal * seal, uint64_t frame), false);
DTI_ABSENT(bool, dti_gmac_add, (dti_seal * seal, const void *data, size_t bytes), false);
DTI_ABSENT(bool, dti_gmac_end, (dti_seal * seal, uint8_t mac[DTI_MAC_BYTES]), false);

#endif
