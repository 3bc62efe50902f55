/* The samples, rows and columns of y over which part (j, i), number j * splits + i, adds: args.h. */
struct conv_part {
    uvec3 first, count;
};

conv_part conv_part_of(uint number)
{
    uint j = number / args.splits, i = number - j * args.splits;
    uint lines = args.oh > 1u ? args.oh : args.ow;
    uint b = args.n * i / args.splits, line = lines * j / args.cuts;
    uint samples = args.n * (i + 1u) / args.splits - b;
    lines = lines * (j + 1u) / args.cuts - line;
    return args.oh > 1u ? conv_part(uvec3(b, line, 0u), uvec3(samples, lines, args.ow))
                        : conv_part(uvec3(b, 0u, line), uvec3(samples, args.oh, lines));
}
