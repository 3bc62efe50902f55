/* The samples, rows and columns of y over which part (j, i), number j * splits + i, adds: args.h. */
struct conv_part {
    uvec3 first, count;
};

conv_part conv_part_of(uint number)
{
    uint j = number / args.splits, i = number - j * args.splits;
    uint lines = args.oh > 1u ? args.oh : args.ow, piece = 0u, pieces = 1u;
    if (args.cuts > lines) { /* each row in pieces */
        pieces = args.cuts / lines;
        piece = j % pieces;
        j /= pieces;
    }
    uint b = args.n * i / args.splits, cuts = args.cuts / pieces, line = lines * j / cuts;
    uint samples = args.n * (i + 1u) / args.splits - b;
    uint col = args.ow * piece / pieces, cols = args.ow * (piece + 1u) / pieces - col;
    lines = lines * (j + 1u) / cuts - line;
    return args.oh > 1u ? conv_part(uvec3(b, line, col), uvec3(samples, lines, cols))
                        : conv_part(uvec3(b, 0u, line), uvec3(samples, args.oh, lines));
}
