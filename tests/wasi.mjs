// Runs a program for WASI under Node, in this folder: node tests/wasi.mjs PROGRAM [ARGUMENT]...
import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const wasi = new WASI({
  version: 'preview1',
  args: process.argv.slice(2),
  env: { TMPDIR: 'build' },
  preopens: { '.': '.' },
});
const module = await WebAssembly.compile(await readFile(process.argv[2]));
// The process ends where the program does: Node's own way is to throw through the program's frames,
// after which it crashed in one run of 300, behind the last line that the program printed.
const imports = { wasi_snapshot_preview1: { ...wasi.wasiImport, proc_exit: process.exit } };
process.exitCode = wasi.start(await WebAssembly.instantiate(module, imports));
