/* Where x is largest in window (p, q) of the plane at `base`, as an index in the plane. By bits: a
 * comparison with a NaN is not to be relied on. */
uint largest(uint base, uint p, uint q)
{
    ivec2 rows = dti_window(p, args.stride_h, args.pad_h, args.kh, args.ih);
    ivec2 cols = dti_window(q, args.stride_w, args.pad_w, args.kw, args.iw);
    uint best_at = uint(rows.x) * args.iw + uint(cols.x);
    float best = x[base + best_at];
    bool found_nan = false;
    for (int i = rows.x; i < rows.y; i++) {
        for (int j = cols.x; j < cols.y; j++) {
            uint at = uint(i) * args.iw + uint(j);
            float value = x[base + at];
            bool is_nan = dti_is_nan(value);
            if (is_nan || (!found_nan && value > best)) {
                best = value;
                best_at = at;
            }
            found_nan = found_nan || is_nan;
        }
    }
    return best_at;
}
