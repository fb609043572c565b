// The text of ixc's IR, graphs and kernels, as its parsers read it (ir/src/graph/parse.rs, ir/src/kernel/parse.rs).
//
// Names of ops, formats and element types are those of the tables: ops.json is written from them by a test (tests/whole/editors.rs).

const tables = require('./ops.json');

const comma = (rule) => seq(rule, repeat(seq(',', rule)));
const list = (rule) => optional(comma(rule));
const any = (names) => (names.length > 1 ? choice(...names) : names[0]);
// Names in kernels have no `-`, which subtracts there.
const name = ($) => alias($.kernel_value, $.value);

module.exports = grammar({
  name: 'ix',

  extras: ($) => [/\s/, $.comment],

  word: ($) => $.word,

  rules: {
    source_file: ($) => repeat(choice($.weight, $.state, $.function, $.kernel)),

    comment: () => token(choice(seq('//', /[^\n]*/), seq(';', /[^\n]*/))),

    // Graphs

    weight: ($) => seq('weight', field('name', $.symbol), ':', $.format, $.dims, optional($.attributes)),

    state: ($) =>
      seq('state', field('name', $.symbol), ':', $.state_kind, comma(seq($.format, $.dims)), optional($.attributes)),

    function: ($) =>
      seq(
        'func', field('name', $.symbol),
        '(', list($.parameter), ')', '->', '(', list($.type), ')',
        '{', repeat($.graph_statement), $.return, '}',
      ),

    parameter: ($) => seq($.value, ':', $.type),

    return: ($) => seq('return', list($.value)),

    // Which ops have operands is said by the table: what follows one that has none is the next statement.
    graph_statement: ($) =>
      seq(
        field('result', comma($.value)), '=',
        choice(
          field('op', alias(any(tables.graph.without_operands), $.op)),
          seq(field('op', alias(any(tables.graph.with_operands), $.op)), comma($.operand)),
        ),
        optional($.attributes),
        optional(seq(':', comma($.type))),
      ),

    operand: ($) => choice($.value, $.symbol, $.absent),

    absent: () => '_',

    attributes: ($) => seq('{', list($.attribute), '}'),

    attribute: ($) => seq(field('name', $.word), '=', field('value', choice($.signed_number, $.string, $.constant))),

    constant: ($) => $.word,

    type: ($) => choice(seq($.format, $.dims), seq('token', optional(choice($.dims, seq('<', $.symbol, '>'))))),

    format: () => any(tables.formats),

    state_kind: () => any(tables.states),

    dims: ($) => seq('[', list(choice($.number, $.dim)), ']'),

    dim: ($) => $.word,

    // Kernels

    kernel: ($) =>
      seq(
        'kernel', field('name', $.kernel_name),
        optional(seq('where', comma($.range))),
        '{', repeat($.buffer), repeat($.kernel_statement), '}',
      ),

    kernel_name: ($) => $.word,

    range: ($) => seq(name($), 'in', $.signed_number, '..=', $.signed_number),

    buffer: ($) => seq('buffer', field('name', name($)), ':', $.buffer_kind, $.sum),

    buffer_kind: ($) => choice('read', 'write', 'read_write', 'scratch', seq('index', '(', $.sum, ')')),

    kernel_statement: ($) =>
      choice(
        $.for,
        seq(name($), '=', alias('load_index', $.op), $.address),
        seq(optional(seq(field('result', name($)), '=')), $.instruction),
      ),

    for: ($) =>
      seq(
        optional(seq(comma(name($)), '=')),
        'for', field('variable', name($)), 'in', $.number, '..', $.sum,
        optional(seq('carry', '(', comma($.carry), ')')),
        '{', repeat($.kernel_statement), optional($.yield), '}',
      ),

    carry: ($) => seq(name($), '=', name($)),

    yield: ($) => seq('yield', comma(name($))),

    // What stands behind the type is a matter of the op, too.
    instruction: ($) =>
      choice(
        seq(alias(any(tables.kernel.alone), $.op), $.vector_type),
        seq(alias(any(tables.kernel.operands), $.op), $.vector_type, comma(choice(name($), $.immediate))),
        seq(alias(any(tables.kernel.address), $.op), $.vector_type, $.address, repeat(seq(',', choice(name($), $.immediate)))),
        seq(alias(any(tables.kernel.sum), $.op), $.vector_type, $.sum),
      ),

    immediate: ($) => choice($.signed_number, seq('[', list($.number), ']')),

    address: ($) => seq(field('buffer', name($)), '[', $.sum, ']'),

    sum: ($) => seq(optional('-'), $.term, repeat(seq(choice('+', '-'), $.term))),

    term: ($) => choice(name($), seq($.number, optional(seq('*', name($))))),

    vector_type: ($) => choice($.vector, seq('tile', '<', $.tile_shape, '>')),

    vector: () => token(prec(1, seq(any(tables.elements), /x[0-9]+/))),

    tile_shape: () => token(prec(1, seq(/[0-9]+x[0-9]+x/, any(tables.elements)))),

    // Tokens

    word: () => /[A-Za-z_][A-Za-z0-9_.]*/,

    value: () => /%[A-Za-z0-9_.$-]+/,

    kernel_value: () => /%[A-Za-z0-9_.]+/,

    symbol: () => token(choice(/@[A-Za-z0-9_.$-]+/, seq('@', /"([^"\\\n]|\\["\\]|\\u\{[0-9a-fA-F]{1,6}\})*"/))),

    string: () => /"([^"\\\n]|\\["\\]|\\u\{[0-9a-fA-F]{1,6}\})*"/,

    signed_number: ($) => seq(optional('-'), $.number),

    number: () => token(choice(/0x[0-9a-fA-F]+/, /[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/)),
  },
});
