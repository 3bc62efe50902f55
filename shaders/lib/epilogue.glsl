/* What happens to a product's value before it is written: the bias, then the epilogue (spec0 and
 * spec1, args.h). The includer has the bindings `bias`, which is 3, and `beside`, in which a bias
 * lies where 3 is the epilogue's operand. */

/* Of the value of column j; its operand is at `to`. */
float finished(float value, uint to, uint j)
{
    if (spec0 == DTI_BIAS)
        value += bias_get(args.bias_offset + j);
    if (spec0 == DTI_BIAS_BESIDE)
        value += beside_get(args.bias_offset + j);
    if (spec1 == DTI_EPILOGUE_RELU_GRAD)
        return bias_get(args.operand_offset + to) > 0.0 ? value : 0.0;
    if (spec1 == DTI_EPILOGUE_ADD)
        return value + bias_get(args.operand_offset + to);
    return spec1 == DTI_EPILOGUE_RELU ? dti_max(value, 0.0) : value;
}
