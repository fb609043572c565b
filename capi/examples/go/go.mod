module example.org/ixc-generate

go 1.19
