/* Angles and remainders, written in ops. */

/* (1 - x) (1 + x), which near 1 has all its digits. */
static dt_tensor dti_apart_from_one(dt_tensor x) {
    const dt_tensor below = dt_affine(x, -1.0f, 1.0f);
    return dt_mul(below, dt_affine(x, 1.0f, 1.0f));
}

DTI_COMPOSED(dt_asin, (dt_tensor x), x, (x)) {
    return dt_atan(dt_div(x, dt_sqrt(dti_apart_from_one(x))));
}

/* 2 atan(sqrt((1 - x) / (1 + x))) */
DTI_COMPOSED(dt_acos, (dt_tensor x), x, (x)) {
    const dt_tensor below = dt_affine(x, -1.0f, 1.0f);
    const dt_tensor ratio = dt_div(below, dt_affine(x, 1.0f, 1.0f));
    return dt_affine(dt_atan(dt_sqrt(ratio)), 2.0f, 0.0f);
}

/* 1 or -1, where dt_sign would be 0. */
static dt_tensor dti_side(dt_tensor x) {
    const dt_tensor least = dti_number(x, 0.0f);
    return dt_affine(dt_lt(x, least), -2.0f, 1.0f);
}

/* Measures from the nearer axis: y / x beside the one, -x / y beside the other, plus the angle of
 * that half axis. It takes no absolute values, because their slope at 0 is 0. */
static dt_tensor dti_atan2(dt_tensor y, dt_tensor x) {
    const dt_tensor size_y = dt_abs(y), size_x = dt_abs(x);
    const dt_tensor tall = dt_gt(size_y, size_x); /* x is 0 only where both are */
    const dt_tensor minus = dt_neg(x), top = dt_where(tall, minus, y);
    const dt_tensor longer = dt_where(tall, y, x);
    const dt_tensor zero = dt_eq(longer, dti_number(longer, 0.0f));
    const dt_tensor angle = dt_mask_inv(dt_atan(dt_div(top, dt_add(longer, zero))), zero);
    const dt_tensor up = dt_affine(dti_side(y), 1.57079633f, 0.0f);
    const dt_tensor behind = dt_lt(x, dti_number(x, 0.0f));
    const dt_tensor flat = dt_mul(dt_affine(up, 2.0f, 0.0f), behind);
    return dt_add(angle, dt_detach(dt_where(tall, up, flat)));
}

DTI_COMPOSED(dt_atan2, (dt_tensor y, dt_tensor x), y, (y, x)) {
    DTI_NEED_TENSOR(x, "atan2");
    DTI_NEED_TENSOR(y, "atan2");
    return dti_atan2(y, x);
}

/* The difference of the quotient and its whole part may be rounded to the wrong side. */
DTI_COMPOSED(dt_remainder, (dt_tensor a, dt_tensor b), a, (a, b)) {
    const dt_tensor whole = dt_floor(dt_div(a, b));
    return dt_sub(a, dt_mul(whole, b));
}

DTI_COMPOSED(dt_fmod, (dt_tensor a, dt_tensor b), a, (a, b)) {
    const dt_tensor quotient = dt_div(a, b);
    const dt_tensor size = dt_floor(dt_abs(quotient)), whole = dt_mul(size, dt_sign(quotient));
    return dt_sub(a, dt_mul(whole, b));
}
