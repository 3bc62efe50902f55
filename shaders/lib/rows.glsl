/* Which rows of a block may have a gradient, as their bits (DTI_ROW_BIT); `row`: its entry's first word.
 * Comes after the table and the state. */
uint rows_of(uint row)
{
    bool whole = (dti_step_u32(DTI_STEP_FLAGS) & DTI_FLAG_WHOLE) != 0u;
    if (whole || (table[row + DTI_TABLE_PARAM] & DTI_TABLE_SPARSE) == 0u)
        return 0xffffffffu;
    return state[args.pair_offset + table[row + DTI_TABLE_BLOCK]];
}
