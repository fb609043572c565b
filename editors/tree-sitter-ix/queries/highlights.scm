; Colours of the IR's text. Later patterns win where several fit.

(comment) @comment
(string) @string
(number) @number
(word) @variable
(constant) @constant
(dim) @constant
(attribute name: (word) @property)

[
  "weight"
  "state"
  "func"
  "return"
  "kernel"
  "where"
  "buffer"
  "in"
  "for"
  "carry"
  "yield"
] @keyword

(buffer_kind) @keyword.modifier
(format) @type
(state_kind) @type
(vector_type) @type
"token" @type

(value) @variable
(symbol) @constant
(function name: (symbol) @function)
(kernel_name) @function
(op) @function.builtin
(absent) @constant.builtin
(for variable: (value) @variable.parameter)
(parameter (value) @variable.parameter)
(address buffer: (value) @variable.member)

[
  "="
  "->"
  ".."
  "..="
  "+"
  "-"
  "*"
] @operator

[
  ","
  ":"
] @punctuation.delimiter

[
  "("
  ")"
  "["
  "]"
  "{"
  "}"
  "<"
  ">"
] @punctuation.bracket
