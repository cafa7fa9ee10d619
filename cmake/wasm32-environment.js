// Gives a program of emscripten the environment of the process that runs it.
Module['preRun'] = [() => Object.assign(ENV, process.env)];
