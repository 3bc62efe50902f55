/* Of sorted x[first, end): where the first stands that is not below `limit`. */
uint dti_bisect(uint first, uint end, uint limit)
{
    while (first < end) {
        uint middle = (first + end) >> 1;
        bool below = x[middle] < limit;
        first = below ? middle + 1u : first;
        end = below ? end : middle;
    }
    return first;
}
