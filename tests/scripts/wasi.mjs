// Runs a program for WASI under Node, in this folder: node tests/scripts/wasi.mjs PROGRAM [ARGUMENT]...
import { readFile } from 'node:fs/promises';
import { WASI } from 'node:wasi';

const wasi = new WASI({
  version: 'preview1',
  args: process.argv.slice(2),
  env: { TMPDIR: 'build' },
  preopens: { '.': '.' },
});
const module = await WebAssembly.compile(await readFile(process.argv[2]));
const imports = { wasi_snapshot_preview1: wasi.wasiImport };
const instance = await WebAssembly.instantiate(module, imports);
// The memory that was just made asks for a collection, which else may run within the program: then
// Node crashed behind the program's last line, in one run of 300, on an object that was gone.
globalThis.gc();
process.exitCode = wasi.start(instance);
