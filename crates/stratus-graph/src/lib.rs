//! Networks as data: operations, shapes, parameters, cost; nothing runs here.
