"""A Python binding, made from api.json at run time with ctypes, and tests that train with it. They prove that
api.json has all that a binding needs. tests/scripts/bindings.sh calls it:

    bindings.py TEST FOLDER COMPILER    FOLDER has libdtrain.so; exits with 1 when the test fails
"""

import ctypes
import json
import subprocess
import sys
from types import ModuleType

SCALARS = {"void": None, "bool": ctypes.c_bool, "char": ctypes.c_char, "int": ctypes.c_int,
           "float": ctypes.c_float, "double": ctypes.c_double, "size_t": ctypes.c_size_t,
           **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}")
              for sign in ("", "u") for bits in (8, 16, 32, 64)}}
POINTERS = {"void": ctypes.c_void_p, "char": ctypes.c_char_p}


def bind(path, library):
    """All of api.json, as a module: dt.dt_tensor, dt.DT_F32, dt.dt_add(a, b)."""
    dt, types, functions = ModuleType("dtrain"), dict(SCALARS), ctypes.CDLL(library)

    def spelled(text):
        base = next(word for word in text.replace("*", " ").split() if word != "const")
        found, stars = types[base], text.count("*")
        if stars and (base in POINTERS or isinstance(found, type(ctypes.CFUNCTYPE(None)))):
            found, stars = POINTERS.get(base, found), stars - 1
        for _ in range(stars):
            found = ctypes.POINTER(found)
        return found

    def called(item):
        return spelled(item["returns"]), [type_of(p, parameter=True) for p in item["params"]]

    def type_of(item, parameter=False):
        if "function" in item:
            result, takes = called(item["function"])
            return ctypes.CFUNCTYPE(result, *takes)
        found = spelled(item["type"])
        if parameter and "dims" in item:
            return ctypes.POINTER(found)
        for size in reversed(item.get("dims", [])):
            found = found * size
        return found

    def failed(result, function, _):
        if result:
            raise RuntimeError(f"{function.__name__}: {dt.dt_result_text(result).decode()}")

    def declare(item):
        name, kind = item.get("name"), item["kind"]
        if kind == "constant":
            return item["value"]
        if kind == "enum":
            vars(dt).update({value["name"]: value["value"] for value in item["values"]})
            types[name] = ctypes.c_int
        elif kind in ("struct", "opaque"):
            types[name] = type(name, (ctypes.Structure,), {})
            types[name]._fields_ = [(m["name"], type_of(m)) for m in item.get("members", [])]
        elif kind == "function_type":
            result, takes = called(item)
            types[name] = ctypes.CFUNCTYPE(result, *takes)
        elif kind == "function":
            made = functions[name]
            made.restype, made.argtypes = called(item)
            if item["returns"] == "dt_result":
                made.errcheck = failed
            return made
        return types.get(name)

    with open(path, encoding="utf-8") as file:
        dt.items = json.load(file)["items"]
    for item in dt.items:
        if "name" in item:
            setattr(dt, item["name"], declare(item))
    return dt


# ---- The tests

INPUTS = (ctypes.c_float * 8)(0, 0, 0, 1, 1, 0, 1, 1)
TARGETS = (ctypes.c_float * 4)(0, 1, 1, 0)


def made(create, kind, *args):
    """What a function creates, which it gives by its last argument."""
    out = ctypes.POINTER(kind)()
    create(*args, ctypes.byref(out))
    return out


def xor_model(dt, ctx):
    def dims(*sizes):
        return dt.dt_shape(rank=len(sizes), dim=sizes)

    graph = made(dt.dt_graph_create, dt.dt_graph, ctx)
    x = dt.dt_input(graph, b"x", dt.DT_F32, dims(2))
    t = dt.dt_input(graph, b"t", dt.DT_F32, dims(1))
    y = dt.dt_sigmoid(dt.dt_nn_linear(dt.dt_tanh(dt.dt_nn_linear(x, b"fc1", 8)), b"fc2", 1))
    adam = dt.dt_optim_desc(kind=dt.DT_OPTIM_ADAM, lr=0.05)
    return graph, x, t, y, dt.dt_mse(y, t), adam


def knows_xor(dt, store, x, y):
    desc = dt.dt_program_desc(outputs=(y,), batch=4)
    predict = made(dt.dt_program_create, dt.dt_program, store, desc)
    found = (ctypes.c_float * 4)()
    dt.dt_program_write(predict, x, INPUTS, ctypes.sizeof(INPUTS))
    dt.dt_program_run(predict, None, None)
    dt.dt_program_read(predict, y, found, ctypes.sizeof(found))
    print("xor:", [round(value, 3) for value in found])
    assert all(abs(value - wanted) < 0.2 for value, wanted in zip(found, TARGETS))


def bindings_have_the_layout_of_the_compiler(dt, folder, compiler):
    rows = [(i["name"], m["name"]) for i in dt.items if i["kind"] == "struct" for m in i["members"]]
    lines = "".join(f'printf("%zu %zu\\n", sizeof({s}), offsetof({s}, {m}));\n' for s, m in rows)
    text = f'#include <dtrain.h>\n#include <stdio.h>\nint main(void) {{\n{lines}return 0;\n}}\n'
    subprocess.run([compiler, "-x", "c", "-Ibuild/include", "-", "-o", f"{folder}/layout"], input=text, text=True,
                   check=True)
    said = subprocess.run([f"{folder}/layout"], capture_output=True, text=True, check=True).stdout
    for (struct, member), line in zip(rows, said.split("\n")):
        kind = getattr(dt, struct)
        assert line == f"{ctypes.sizeof(kind)} {getattr(kind, member).offset}", (struct, member, line)
    assert len(rows) == said.count("\n") > 500


def bindings_learn_xor(dt, *_):
    ctx = made(dt.dt_ctx_create, dt.dt_ctx, dt.dt_ctx_desc())
    graph, x, t, y, loss, adam = xor_model(dt, ctx)
    store = made(dt.dt_store_create, dt.dt_store, graph, dt.dt_store_desc(seed=1))
    desc = dt.dt_program_desc(loss=loss, batch=4, optim=ctypes.pointer(adam))
    train, report = made(dt.dt_program_create, dt.dt_program, store, desc), dt.dt_report()
    dt.dt_program_write(train, x, INPUTS, ctypes.sizeof(INPUTS))
    dt.dt_program_write(train, t, TARGETS, ctypes.sizeof(TARGETS))
    for _ in range(300):
        dt.dt_program_run(train, None, report)
    assert report.step == 300 and report.loss < 0.01, report.loss
    knows_xor(dt, store, x, y)
    dt.dt_ctx_destroy(ctx)


def bindings_train_epochs_by_a_description(dt, *_):
    ctx = made(dt.dt_ctx_create, dt.dt_ctx, dt.dt_ctx_desc())
    graph, x, t, y, loss, adam = xor_model(dt, ctx)
    columns = [dt.dt_column(input=tensor, data=ctypes.cast(values, ctypes.c_void_p), dtype=dt.DT_F32)
               for tensor, values in ((x, INPUTS), (t, TARGETS))]
    desc = dt.dt_trainer_desc(loss=loss, batch=4, optim=ctypes.pointer(adam), seed=1,
                              data=dt.dt_dataset(rows=4, columns=tuple(columns)))
    trainer, report = made(dt.dt_trainer_create, dt.dt_trainer, graph, desc), dt.dt_train_report()
    for _ in range(300):
        dt.dt_trainer_epoch(trainer, report)
    assert report.step == 300 and report.loss < 0.01, (report.step, report.loss)
    knows_xor(dt, dt.dt_trainer_store(trainer), x, y)
    dt.dt_ctx_destroy(ctx)


def bindings_get_the_text_of_an_error(dt, *_):
    said, call = [], dict(dt.dt_on_error._fields_)["call"]
    handler = call(lambda user, result, text: said.append((result, text.decode())))
    desc = dt.dt_ctx_desc(on_error=dt.dt_on_error(call=handler))
    ctx = made(dt.dt_ctx_create, dt.dt_ctx, desc)
    graph, x, t, _, _, _ = xor_model(dt, ctx)
    dt.dt_matmul(x, t)
    try:
        made(dt.dt_store_create, dt.dt_store, graph, None)
        raise AssertionError("a wrong graph was accepted")
    except RuntimeError as error:
        print(error, said)
    assert said[0][0] == dt.DT_ERROR_INVALID and said[0][1] == dt.dt_ctx_error(ctx).decode()
    dt.dt_ctx_destroy(ctx)


if __name__ == "__main__":
    test, folder, compiler = sys.argv[1:]
    globals()[test](bind("build/include/api.json", f"./{folder}/libdtrain.so"), folder, compiler)
