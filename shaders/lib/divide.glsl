/* i / by, i below 2^31, from the factor that src/backend/vulkan/run/divide.c has made of `by`. */
uint dti_divided(uint i, uint by, uint factor)
{
    uint high, low;
    umulExtended(i << 1, factor, high, low);
    return high >> uint(findMSB(by - 1u) + 1);
}
